// Training runs on one GPU: the CPU's losses, equal bits in two runs, after a resume and under every recomputation.
// Checkpoints of both backends and planned memory are tested too, with a production attention shape.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/ops/elementwise/elementwise.h"
#include "tests/support/op_test.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

const Words kShape = {"--hidden-size", "128", "--num-attention-heads", "2", "--seq-length", "64"};
const Words kGroupedLlama = llama_flags() + Words{"--num-query-groups", "1"};
const Words kDeterministic = {"--deterministic-mode"};
const std::vector<Words> kDtypes = {{}, {"--bf16"}};

Words cpu(const Words& flags) { return kShape + flags; }
Words cuda(const Words& flags) { return kShape + Words{"--device", "cuda"} + flags; }

class CudaTraining : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = missing(DeviceType::kCuda); !reason.empty()) GTEST_SKIP() << reason;
  }

  // The run with `flags` and one that is stopped after three steps and resumed, its second half with another cache.
  void expect_resume(const Words& flags);

  TestFolder scratch_;
};

double l2_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(a[i] - b[i], 2);
  return std::sqrt(sum);
}

TEST_F(CudaTraining, Fp32LossesAreThoseOfTheCpu) {
  for (const Words& model : {kDropout, kGroupedLlama}) {
    const Words flags = model + Words{"--train-iters", "20", "--lr-warmup-iters", "2"};
    const RunResult want = train({.flags = cpu(flags)});
    const RunResult got = train({.flags = cuda(flags)});
    EXPECT_EQ(got.loss_values.size(), 20u);
    expect_losses_near(got, want);
    EXPECT_NE(got.losses, want.losses) << "the GPU did not compute";
  }
}

TEST_F(CudaTraining, Bf16LossesAreAsCloseToFp32AsTheCpus) {
  for (const Words& model : {Words{}, kGroupedLlama}) {
    const Words flags = model + Words{"--train-iters", "20", "--lr-warmup-iters", "2"};
    const RunResult want = train({.flags = cpu(flags)});
    const RunResult own = train({.flags = cpu(flags + Words{"--bf16"})});
    const RunResult got = train({.flags = cuda(flags + Words{"--bf16"})});
    ASSERT_EQ(got.loss_values.size(), 20u);
    const double bound = 2 * l2_distance(own.loss_values, want.loss_values);
    EXPECT_GT(bound, 0);
    EXPECT_LE(l2_distance(got.loss_values, want.loss_values), bound);
    EXPECT_LT(got.loss_values[19], got.loss_values[0]);
  }
}

TEST_F(CudaTraining, TwoDeterministicRunsAreBitIdentical) {
  for (const Words& dtype : kDtypes) {
    const Words flags = cuda(kGroupedLlama + kDropout + dtype + kDeterministic);
    const RunResult first = train({.flags = flags}), second = train({.flags = flags});
    expect_same_run(first, second);
    EXPECT_TRUE(first.state == second.state);
    EXPECT_TRUE(first.gradients == second.gradients);
  }
}

void CudaTraining::expect_resume(const Words& flags) {
  const std::string first_cache = scratch_.path("first"), second_cache = scratch_.path("second");
  const RunResult unbroken = train({.flags = flags, .cache = first_cache});
  const RunResult first =
      train({.flags = flags + Words{"--exit-interval", "3", "--save", scratch_.path("kept")}, .cache = first_cache});
  EXPECT_EQ(first.code, ExitCode::kStoppedOnRequest);
  const RunResult second = train({.flags = flags + Words{"--load", scratch_.path("kept")}, .cache = second_cache});
  ASSERT_EQ(first.losses.size(), 3u);
  ASSERT_EQ(second.losses.size(), 3u);
  EXPECT_EQ(first.losses + second.losses, unbroken.losses);
  EXPECT_EQ(first.grad_norms + second.grad_norms, unbroken.grad_norms);
  EXPECT_TRUE(second.state == unbroken.state);
  EXPECT_FALSE(std::filesystem::exists(second_cache)) << "algorithms were measured that the checkpoint has";
}

std::size_t saved_algorithms(const std::string& folder) {
  return find_checkpoint({.directory = folder, .step = {}})->state().gemm_algorithms.size();
}

TEST_F(CudaTraining, ADeterministicRunResumesBitForBit) {
  expect_resume(cuda(kGroupedLlama + kDropout + Words{"--bf16"} + kDeterministic));
  EXPECT_EQ(saved_algorithms(scratch_.path("kept")), 0u);
}

TEST_F(CudaTraining, AnFp32RunResumesBitForBitWithTheAlgorithmsOfItsCheckpoint) {
  expect_resume(cuda(kDropout));
  EXPECT_GT(saved_algorithms(scratch_.path("kept")), 0u);
}

TEST_F(CudaTraining, RecomputationChangesNoBitAndSavesMemory) {
  for (const Words& dtype : kDtypes) {
    for (const Words& model : {Words{}, kGroupedLlama}) {
      const Words flags =
          cuda(model + kDropout + dtype + kDeterministic + Words{"--num-layers", "4", "--train-iters", "2"});
      const RunResult plain = train({.flags = flags});
      for (const Words& mode : recompute_modes()) {
        SCOPED_TRACE(mode.back());
        const RunResult recomputed = train({.flags = flags + mode});
        expect_same_run(plain, recomputed);
        EXPECT_LT(recomputed.arena_planned, plain.arena_planned);
      }
    }
  }
}

// Weights, main parameters and moments, as the resumed run starts with them.
TEST_F(CudaTraining, CheckpointsMoveFromTheCpuAndBackBitForBit) {
  for (const Words& dtype : kDtypes) {
    const std::string folder = scratch_.path(dtype.empty() ? "fp32" : "bf16");
    const auto run = [&](Words flags, int steps, ModelState& loaded) {
      flags = flags + dtype + kDeterministic + Words{"--exit-interval", "2", "--save", folder, "--load", folder};
      const RunResult result =
          train({.flags = flags, .prepare = [&](Trainer& trainer, int) { loaded = read_state(trainer.rank()); }});
      EXPECT_EQ(result.losses.size(), static_cast<std::size_t>(steps));
      return result.state;
    };
    ModelState fresh, on_cuda, back;
    const ModelState on_cpu = run(cpu({}), 2, fresh);
    const ModelState trained = run(cuda({}), 2, on_cuda);
    run(cpu({}), 2, back);
    EXPECT_TRUE(on_cuda == on_cpu);
    EXPECT_TRUE(back == trained);
    EXPECT_TRUE(fresh != on_cpu);
    EXPECT_TRUE(trained != on_cpu);
  }
}

TEST_F(CudaTraining, MemoryIsWhatWasPlannedAndTakenBeforeStepThree) {
  for (const Words& mode : {Words{}, kDeterministic}) {
    std::int64_t after_two = -1;
    const auto watch = [&](Trainer& trainer, int) {
      trainer.rank().runner.hooks(0).add(
          HookPoint::kPreForward, [&rank = trainer.rank(), &after_two, calls = 0](const HookContext& context) mutable {
            if (context.microbatch == 0 && ++calls == 3) after_two = rank.memory.pool.system_allocations();
          });
    };
    const RunResult result = train({.flags = cuda(mode + kEvaluations + Words{"--bf16"}), .prepare = watch});
    EXPECT_EQ(result.arena_touched, result.arena_planned);
    EXPECT_EQ(result.pool_peak, result.planned_total);
    EXPECT_LE(static_cast<double>(result.pool_reserved), 1.03 * static_cast<double>(result.pool_peak));
    EXPECT_GT(after_two, 0);
    EXPECT_EQ(result.system_allocations_after, after_two);
  }
}

TEST_F(CudaTraining, HasNoHazards) {
  const RunResult result =
      train({.flags = cuda(kEvaluations + Words{"--bf16", "--check-hazards", "--train-iters", "4"})});
  EXPECT_EQ(result.hazards, 0);
  EXPECT_EQ(result.code, ExitCode::kOk);
  EXPECT_EQ(result.losses.size(), 4u);
}

// A hook enqueues extra work: it poisons one gradient of the first microbatch of step 2. It does so again in the rerun
// of that step, after step 3 was dropped. Offloaded activations change nothing of that.
TEST_F(CudaTraining, ANanSkipsTheStepAndIsNamed) {
  const auto poison = [](Trainer& trainer, int) {
    Rank& rank = trainer.rank();
    const int last = rank.runner.num_segments() - 1;
    rank.runner.hooks(last).add(HookPoint::kPostWeight, [&rank, calls = 0](const HookContext& context) mutable {
      if (context.microbatch != 0 || (++calls != 2 && calls != 4)) return;
      const Tensor gradient = rank.model.gpt.parameters->units().back().main_grads;
      launch(rank.streams.compute, Fill{.x = gradient.slice(0, 0, 1), .value = std::nan("")});
    });
  };
  const Words flags = cuda(kDeterministic + Words{"--lr-decay-style", "constant"});
  const Words moved = flags + offload({"attn_norm", "fc1", "act"});
  testing::internal::CaptureStderr();
  const RunResult poisoned = train({.flags = flags, .prepare = poison});
  const std::string reported = testing::internal::GetCapturedStderr();
  for (const char* part : {"step 2 was skipped (loss ", "grad norm nan); the first value that is not finite: rank 0, ",
                           ", backward_weight, microbatch 0: fill wrote nan to \"gradient"})
    EXPECT_NE(reported.find(part), std::string::npos) << part << " is not in: " << reported;
  const RunResult clean = train({.flags = flags});
  const RunResult on_host = train({.flags = moved, .prepare = poison});
  expect_second_step_skipped(poisoned, clean);
  EXPECT_EQ(on_host.skipped_steps, 1);
  EXPECT_GT(on_host.ranks.at(0).slot_bytes, 0);
  expect_same_run(on_host, poisoned);
  ASSERT_EQ(poisoned.losses.size(), 6u);
}

// Rejected by the forecast, ahead of any allocation.
TEST_F(CudaTraining, ARunTooLargeForTheDeviceNamesItsOwnersAndTheRemedy) {
  try {
    train({.flags = cuda({"--hidden-size", "1048576", "--num-attention-heads", "8192"})});
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ExitCode::kOutOfMemory) << text;
    for (const char* part : {"memory of the GPU: ", " GiB, the free memory of ", "a forecast of ", " GiB (optimizer ",
                             "--micro-batch-size"})
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  EXPECT_EQ(train({.flags = cuda({"--train-iters", "1"})}).losses.size(), 1u) << "the device is left unusable";
}

}  // namespace
}  // namespace megalith::test

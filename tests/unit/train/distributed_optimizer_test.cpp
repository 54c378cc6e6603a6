// The distributed optimizer (ZeRO-1) in complete runs on thread ranks: the numbers of plain data parallelism with a
// share of the memory. layout_claims_test.cpp tests the guarantees of every layout.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

const Words kZero = {"--use-distributed-optimizer"};
const Words kOverlapGradients = {"--overlap-grad-reduce", "--ddp-bucket-size", "1"};
const Words kOverlapBoth = kOverlapGradients + Words{"--overlap-param-gather"};
// A batch that 1 to 4 replicas divide.
const Words kSmallZero = {"--hidden-size", "16", "--seq-length",        "8",  "--micro-batch-size", "1",
                          "--train-iters", "3",  "--global-batch-size", "12", "--hidden-dropout",   "0.1"};
const Words kClipping = {"--clip-grad", "0.1"};  // acts in every step
const Words kBf16 = {"--bf16"};
const Words kWide = {"--hidden-size", "32"};

// The same losses, norms, squares, weights, main parameters and moments, bit for bit.
void expect_same_numbers(const RunResult& got, const RunResult& want) {
  EXPECT_FALSE(want.losses.empty());
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_TRUE(same_bits(got.whole_state, want.whole_state));
  EXPECT_TRUE(same_bits(got.gradients, want.gradients));
  EXPECT_EQ(got.grad_norms, want.grad_norms);
  EXPECT_EQ(got.squares, want.squares);
  for (const std::string& norm : want.grad_norms) EXPECT_GT(number_of_hex(norm), 0.1) << "nothing is clipped";
  EXPECT_TRUE(got.copies_agree);
  EXPECT_TRUE(got.memory_as_planned);
}

class Replicas : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DistributedOptimizer, Replicas, testing::Range(1, 5),
                         [](const auto& ranks) { return "dp" + std::to_string(ranks.param); });

TEST_P(Replicas, HaveTheBitsOfPlainDataParallelism) {
  for (const Words& dtype : {Words{}, kBf16 + Words{"--main-grads-dtype", "bf16", "--exp-avg-dtype", "bf16"}}) {
    const Words flags = kSmallZero + kClipping + dtype;
    const RunResult plain = train({.flags = flags, .ranks = GetParam()});
    EXPECT_EQ(plain.ranges_scattered + plain.ranges_gathered, 0);
    for (const Words& overlap : {Words{}, kOverlapGradients, kOverlapBoth}) {
      SCOPED_TRACE(testing::PrintToString(overlap));
      const RunResult zero = train({.flags = flags + kZero + overlap, .ranks = GetParam()});
      expect_same_numbers(zero, plain);
      EXPECT_EQ(zero.ranges_gathered > 0, GetParam() > 1);
    }
  }
}

// Embedding, 2 layers, final norm: units, of which each is scattered and gathered once a step.
TEST_P(Replicas, HoldAShareAndCommunicateIt) {
  const int ranks = GetParam();
  std::mutex mutex;
  std::int64_t padded = 0, numel = 0, units = 0;
  const auto measure = [&](Trainer& trainer, int) {
    const std::lock_guard lock(mutex);
    padded = numel = units = 0;
    for (const ParameterUnit& unit : trainer.rank().model.gpt.parameters->units()) {
      padded += unit.numel;
      units += unit.numel > 0 ? 1 : 0;
      EXPECT_EQ(unit.numel % (128 * ranks), 0);
    }
    numel = trainer.rank().model.gpt.parameters->numel();
  };
  for (const Words& overlap : {Words{}, kOverlapGradients, kOverlapBoth}) {
    const RunResult run = train({.flags = kSmallZero + kBf16 + kZero + overlap, .ranks = ranks, .prepare = measure});
    ASSERT_GT(units, 2);
    ASSERT_EQ(run.memory.size(), static_cast<std::size_t>(ranks));
    for (const auto& [rank, bytes] : run.memory) {
      const auto of = [&bytes = bytes](MemoryCategory c) {
        return static_cast<std::int64_t>(bytes[static_cast<std::size_t>(c)]);
      };
      EXPECT_EQ(of(MemoryCategory::kMainParameters) * ranks, 4 * padded) << "rank " << rank;
      EXPECT_EQ(of(MemoryCategory::kOptimizer) * ranks, 8 * padded) << "rank " << rank;
      EXPECT_EQ(of(MemoryCategory::kParameters), 2 * padded) << "rank " << rank;
      EXPECT_LT(of(MemoryCategory::kOptimizer), 8 * (numel / ranks + 512 * units)) << "rank " << rank;
    }
    const std::int64_t steps = 3, many = ranks > 1 ? 1 : 0, buckets = overlap.empty() ? 1 : units;
    EXPECT_EQ(run.buckets_reduced, many * steps * buckets);
    EXPECT_EQ(run.ranges_scattered, many * steps * units);
    EXPECT_EQ(run.buckets_gathered, many * steps * buckets);
    EXPECT_EQ(run.ranges_gathered, many * steps * units);
    EXPECT_EQ(run.data_calls, many * 2 * steps * units);  // no concurrent all_reduce of gradients
    EXPECT_TRUE(run.memory_as_planned);
  }
}

std::vector<Way> zero_layouts() {
  const Words sequence = {"--sequence-parallel"};
  const Words layers = {"--num-layers", "4"};
  return {
      {"tp2_dp2", tensor_ranks(2), 4},
      {"tp2_sp_dp2_llama_bf16", tensor_ranks(2) + sequence + llama_flags() + kBf16 + kWide, 4},
      // Keys and values of two groups on four ranks: two hold the same, with a part of the gradient each.
      {"tp4_sp_dp2_llama", tensor_ranks(4) + sequence + llama_flags() + kWide, 8},
      {"pp2_dp2_gpipe", stages(2) + schedule("gpipe"), 4},
      {"pp2_dp3_1f1b_bf16", stages(2) + schedule("1f1b") + kBf16, 6},
      {"pp2_dp2_interleaved", layers + stages(2) + schedule("interleaved"), 4},
      {"pp2_dp2_zb_h1", stages(2) + schedule("zb-h1"), 4},
      {"pp2_dp2_zb_v", layers + stages(2) + schedule("zb-v"), 4},
      {"pp2_dp2_dualpipe_v_bf16", layers + stages(2) + schedule("dualpipe-v") + kBf16, 4},
      {"tp2_sp_pp2_dp2", tensor_ranks(2) + sequence + stages(2), 8},
      {"recompute_dp2", {"--recompute-granularity", "full", "--loss-chunk-size", "3"}, 2},
      {"untied_dp3", {"--untie-embeddings-and-output-weights", "--qk-layernorm"}, 3},
  };
}

class ShardedLayouts : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(DistributedOptimizer, ShardedLayouts, testing::ValuesIn(zero_layouts()),
                         [](const auto& layout) { return layout.param.name; });

TEST_P(ShardedLayouts, HaveTheBitsOfPlainDataParallelismAndNoHazards) {
  const Words flags = kSmallZero + GetParam().flags + kClipping + kEvaluations;
  const RunResult plain = train({.flags = flags, .ranks = GetParam().ranks});
  const RunResult zero =
      train({.flags = flags + kZero + kOverlapBoth + Words{"--check-hazards"}, .ranks = GetParam().ranks});
  expect_same_numbers(zero, plain);
  EXPECT_EQ(zero.hazards, 0);
  EXPECT_EQ(zero.code, ExitCode::kOk);
  EXPECT_GT(zero.ranges_scattered, 3);
  EXPECT_GT(zero.buckets_gathered, 3);
  expect_same_numbers(train({.flags = flags + kZero, .ranks = GetParam().ranks}), plain);
}

// Leaves out each event wait, like Hazards.EverySuppressedWaitIsFound.
#if !defined(__SANITIZE_THREAD__)
TEST(DistributedOptimizer, EverySuppressedWaitIsFound) {
  for (const Words& overlap : {Words{}, kOverlapGradients, kOverlapBoth}) {
    const Words flags = kZero + overlap + Words{"--train-iters",   "2", "--micro-batch-size", "4", "--check-hazards",
                                                "--eval-interval", "1", "--eval-iters",       "1"};
    expect_each_wait_needed(8, flags, 2);
  }
}
#endif

// A NaN that one rank adds to another's shard.
TEST(DistributedOptimizer, ASkippedStepIsSkippedByAllRanks) {
  // Four microbatches a step: the first of step 2.
  const auto poisoned = poison({.calls = {5}, .rank = 1, .unit = 0, .element = 0});
  const Words flags =
      kSmallZero + kClipping + Words{"--lr-decay-style", "constant", "--check-weight-hash-interval", "1"};
  const RunResult clean = train({.flags = flags, .ranks = 3});
  for (const Words& overlap : {Words{}, kOverlapBoth}) {
    const RunResult plain = train({.flags = flags, .ranks = 3, .prepare = poisoned});
    const RunResult zero = train({.flags = flags + kZero + overlap, .ranks = 3, .prepare = poisoned});
    expect_second_step_skipped(zero, clean);
    EXPECT_EQ(zero.losses, plain.losses);
    EXPECT_TRUE(same_bits(zero.whole_state, plain.whole_state));
    EXPECT_TRUE(zero.copies_agree);
  }
}

TEST(DistributedOptimizer, LoadsWeightsAloneAndMomentsOfOtherDtypes) {
  const TestFolder scratch;
  const Words flags = kSmallZero + kBf16 + kClipping;
  train({.flags = flags + Words{"--save", scratch.path("c")}, .ranks = 2});
  for (const Words& how : {Words{"--finetune"}, Words{"--no-load-optim"}, Words{"--exp-avg-dtype", "bf16"}}) {
    const Words load = flags + Words{"--train-iters", "5", "--load", scratch.path("c")} + how;
    expect_same_numbers(train({.flags = load + kZero + kOverlapBoth, .ranks = 3}), train({.flags = load, .ranks = 3}));
  }
}

}  // namespace
}  // namespace megalith::test

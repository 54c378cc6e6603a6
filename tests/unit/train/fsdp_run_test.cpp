// Tests of runs with sharded units: skipped and dropped steps, memory and collectives, and waits that are left out.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tests/support/matchers.h"
#include "tests/support/tier.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

const Words kSmallFsdpRun = words(
    "--hidden-size 16 --seq-length 8 --micro-batch-size 1 --train-iters 4 --global-batch-size 8 "
    "--hidden-dropout 0.1 --num-layers 4 --untie-embeddings-and-output-weights");
const Words kAllSharded = strategy("optim_grads_params") + Words{"--fsdp-embedding-and-head", "sharded"};
const Words kNarrow{"--megatron-fsdp-grad-comm-dtype", "bf16"};
const Words kAllShardedLast = kAllSharded + Words{"--fsdp-reduce-grads", "last"};

// Makes a gradient of rank 1 NaN in calls of a hook of layer 0. Calls 5 to 8 are in step 2. Calls 9 to 12 are in step
// 3, which is dropped, and 13 to 16 in the rerun of step 2.
const Poison kPoison{.calls = {6, 14}, .rank = 1, .segment = 1};

// The reason is found in the rerun of a step, also if stale slots are NaN.
TEST(FsdpRun, ASkippedStepIsExplainedAndTheNextOneDropped) {
  const Words flags = kSmallFsdpRun + Words{"--lr-decay-style", "constant"};
  const RunResult plain = train({.flags = flags + strategy("optim_grads"), .ranks = 2, .prepare = poison(kPoison)});
  EXPECT_EQ(plain.skipped_steps, 1);
  for (const Words& more : {Words{}, Words{"--check-hazards"}}) {
    testing::internal::CaptureStderr();
    const RunResult run =
        train({.flags = flags + strategy("optim_grads_params") + more, .ranks = 2, .prepare = poison(kPoison)});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr("rank 1, layer 0 attention, backward_weight, microbatch 1: fill wrote nan to \"gradient"));
    EXPECT_EQ(run.losses, plain.losses);
    EXPECT_EQ(run.grad_norms, plain.grad_norms);
    EXPECT_EQ(run.skipped_steps, 1);
    EXPECT_TRUE(run.weights == plain.weights);
    EXPECT_EQ(run.hazards, 0);
  }
}

std::size_t bytes_of(const RunResult& run, int rank, MemoryCategory category) {
  return run.memory.at(rank)[static_cast<std::size_t>(category)];
}

// Expects only shards, resident units and slots, as in the plan.
TEST(FsdpRun, HoldsShardsResidentUnitsAndSlots) {
  struct Count {
    std::size_t shards = 0, resident = 0, slots = 0;  // elements
    std::size_t all() const { return shards + resident + slots; }
  };
  for (const auto& [flags, unit_slots] : {std::pair{kAllSharded, 2},
                                          {kAllSharded + Words{"--fsdp-unit-slots", "3"}, 3},
                                          {strategy("optim_grads_params"), 2},
                                          {kAllShardedLast, 2},
                                          {strategy("optim_grads"), 2},
                                          {kAllSharded + kNarrow, 2},
                                          {strategy("optim_grads") + kNarrow, 2}}) {
    SCOPED_TRACE(testing::PrintToString(flags));
    Count weights, gradients;
    std::mutex mutex;
    CategoryBytes planned{};
    const auto count = [&, slots = unit_slots](Trainer& trainer, int) {
      const std::lock_guard lock(mutex);
      planned = trainer.plans().persistent;
      weights = gradients = {};
      std::map<std::int64_t, int> weight_slots, gradient_slots;
      std::int64_t end_weights = 0, end_gradients = 0;
      const std::vector<ParameterUnit>& units = trainer.rank().model.gpt.parameters->units();
      for (std::size_t u = 0; u < units.size(); ++u) {
        const ParameterUnit& unit = units[u];
        const bool is_end = u == 0 || u + 1 == units.size();
        const auto add = [&](bool resident, Count& to, std::map<std::int64_t, int>& of_size, std::int64_t& end) {
          (resident ? to.resident : to.shards) += static_cast<std::size_t>(resident ? unit.numel : unit.numel / 2);
          if (resident) return;
          if (is_end) end = std::max(end, unit.numel);
          if (!is_end && of_size[unit.numel]++ < slots) to.slots += static_cast<std::size_t>(unit.numel);
        };
        add(unit.resident_weights, weights, weight_slots, end_weights);
        add(unit.resident_gradients, gradients, gradient_slots, end_gradients);
      }
      weights.slots += static_cast<std::size_t>(end_weights);
      gradients.slots += static_cast<std::size_t>(end_gradients);
    };
    const RunResult run = train({.flags = kSmallFsdpRun + Words{"--bf16"} + flags, .ranks = 2, .finish = count});
    for (const int rank : {0, 1}) {
      EXPECT_EQ(bytes_of(run, rank, MemoryCategory::kParameters), 2 * weights.all());
      const std::size_t of_slot = flags.back() == kNarrow.back() ? 2 : 4;
      EXPECT_EQ(bytes_of(run, rank, MemoryCategory::kGradients),
                4 * (gradients.shards + gradients.resident) + of_slot * gradients.slots);
      for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients})
        EXPECT_EQ(bytes_of(run, rank, category), planned[static_cast<std::size_t>(category)]);
    }
    EXPECT_GT(weights.slots + gradients.slots, 0u);
    EXPECT_TRUE(run.memory_as_planned);
  }
}

// Runs that reduce such gradients form one class of bits, near that of fp32.
TEST(FsdpRun, GradientsAreSentInBf16AndSummedInFp32) {
  const Words flags = kSmallFsdpRun + Words{"--bf16", "--num-distributed-optimizer-instances", "2"};
  const auto run = [&](const Words& more) { return train({.flags = flags + more, .ranks = 4}); };
  const RunResult wide = run(strategy("optim_grads")), narrow = run(strategy("optim_grads") + kNarrow);
  expect_same_run(run(strategy("optim_grads_params") + kNarrow), narrow);
  EXPECT_NE(narrow.grad_norms, wide.grad_norms);
  for (std::size_t step = 0; step < wide.losses.size(); ++step) {
    EXPECT_NEAR(std::stod(narrow.losses[step]), std::stod(wide.losses[step]), 1e-3);
    EXPECT_NEAR(std::stod(narrow.grad_norms[step]) / std::stod(wide.grad_norms[step]), 1, 1e-2);
  }
}

// 2 L - N gathers of layers in a step of one microbatch, and one reduction of each.
TEST(FsdpRun, AStepGathersEachLayerTwiceButThoseInTheSlots) {
  const Words flags =
      kSmallFsdpRun + strategy("optim_grads_params") +
      Words{"--num-layers", "5", "--global-batch-size", "2", "--fsdp-unit-slots", "3", "--fsdp-prefetch", "1"};
  const auto run = [&](int steps) {
    return train({.flags = flags + Words{"--train-iters", std::to_string(steps)}, .ranks = 2}).ranks[0];
  };
  const RankActivity few = run(2), more = run(5);
  EXPECT_EQ(more.units_gathered - few.units_gathered, 3 * (2 * 5 - 3));
  EXPECT_EQ(more.units_reduced - few.units_reduced, 3 * 5);
}

// Leaves out each event wait, like Hazards.EverySuppressedWaitIsFound.
#if !defined(__SANITIZE_THREAD__)
TEST(FsdpRun, EverySuppressedWaitIsFound) {
  const Words hybrid{"--num-distributed-optimizer-instances", "2", "--outer-dp-sharding-strategy", "optim"};
  // Excludes waits after the last step, for the gathers of a next one.
  for (const auto& [way, after] : {std::pair{Way{"all", kAllSharded, 2}, 3},
                                   {Way{"ends_whole", strategy("optim_grads_params"), 2}, 2},
                                   {Way{"hybrid", strategy("optim_grads_params") + hybrid, 4}, 3}}) {
    SCOPED_TRACE(way.name);
    const Words flags =
        kSmallFsdpRun + way.flags + Words{"--train-iters",   "2", "--global-batch-size", "4", "--check-hazards",
                                          "--eval-interval", "1", "--eval-iters",        "1"};
    expect_each_wait_needed(40, flags, way.ranks, one_of(7), after);
  }
}
#endif

// The caller of the step catches an exception between two steps, while the weights of the first are gathered.
TEST(FsdpRun, AStepThatBrokeOffChangesNoBitsOfTheNext) {
  const Words overlap{"--overlap-grad-reduce", "--ddp-bucket-size", "1", "--overlap-param-gather"};
  for (const Words& way : {strategy("optim") + overlap, strategy("optim_grads_params") + overlap, kAllSharded}) {
    SCOPED_TRACE(testing::PrintToString(way));
    // Breaks after the reductions of all units except the embedding.
    expect_nothing_left_of_a_broken_step({.flags = kSmallFsdpRun + way + Words{"--check-hazards"}, .ranks = 2},
                                         {.point = HookPoint::kPostWeight, .segment = 1, .microbatch = 3});
  }
}

// Breaks during the gathers that follow an update, which counts.
TEST(FsdpRun, AStepThatBrokeOffAfterItsUpdateIsGatheredWhole) {
  const Words overlap{"--overlap-grad-reduce", "--ddp-bucket-size", "1", "--overlap-param-gather"};
  const Words hybrid{"--num-distributed-optimizer-instances", "2", "--outer-dp-sharding-strategy", "optim"};
  for (const auto& [way, ranks] :
       {std::pair{strategy("optim") + stages(2), 4}, {strategy("optim") + overlap, 2}, {kAllSharded + hybrid, 4}}) {
    SCOPED_TRACE(testing::PrintToString(way));
    const auto run = [&, way = way, ranks = ranks](bool breaks) {
      const auto steps = [breaks](Trainer& trainer, int) {
        OpObserver& observer = *trainer.rank().streams.communication.instruments().observer;
        const OpObserver own = observer;
        int gathers = 0;
        observer.before = [&gathers](const Stream& stream, const Access& op) {
          if (stream.name() == "communication" && op.name() == "all_gather" && ++gathers == 2)
            throw std::runtime_error("a gather failed");
        };
        BlankSamples samples(trainer.rank().config, 1e-2f);
        for (; samples.input.iteration < 4; ++samples.input.iteration) {
          observer.active = breaks && samples.input.iteration == 2;
          if (observer.active) {
            EXPECT_THROW(trainer.step().train(samples.input), std::runtime_error);
            continue;
          }
          trainer.step().train(samples.input);
          trainer.step().read_result();
        }
        observer = own;
      };
      return train({.flags = kSmallFsdpRun + way + Words{"--check-hazards"}, .ranks = ranks, .prepare = steps});
    };
    const RunResult with = run(true);
    EXPECT_EQ(with.hazards, 0);
    EXPECT_TRUE(with.copies_agree);
    expect_same_run(with, run(false));
  }
}

}  // namespace
}  // namespace megalith::test

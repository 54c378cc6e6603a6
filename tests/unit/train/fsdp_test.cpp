// Sharding strategies in complete runs on thread ranks. If gradients are summed over ranks once a step, bits equal
// plain data parallelism. If each microbatch sums them, the runs form a separate class of bits.
#include <gtest/gtest.h>

#include "tests/support/tier.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

// Four layers, one sequence a microbatch.
const Words kSmallFsdp = {"--num-layers",       "4", "--hidden-size",       "16", "--seq-length",     "8",
                          "--micro-batch-size", "1", "--global-batch-size", "8",  "--hidden-dropout", "0.1",
                          "--train-iters",      "3", "--clip-grad",         "0.1"};
const Words kUntied = {"--untie-embeddings-and-output-weights"};

const Words kGradients = strategy("optim_grads");
const Words kWeights = strategy("optim_grads_params");
const Words kLast = kWeights + Words{"--fsdp-reduce-grads", "last"};
Words slots(int count, int prefetch) {
  return {"--fsdp-unit-slots", std::to_string(count), "--fsdp-prefetch", std::to_string(prefetch)};
}
const Words kTensor = tensor_ranks(2) + Words{"--sequence-parallel"};

void expect_units_moved(const RunResult& run, bool gathers, bool reduces) {
  for (const RankActivity& rank : run.ranks) {
    EXPECT_EQ(rank.units_gathered > 0, gathers);
    EXPECT_EQ(rank.units_reduced > 0, reduces);
  }
}

class FsdpReplicas : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Fsdp, FsdpReplicas, testing::Values(2, 4, 8),
                         [](const auto& ranks) { return "dp" + std::to_string(ranks.param); });

TEST_P(FsdpReplicas, EveryStrategyHasTheBitsOfPlainDataParallelism) {
  const int ranks = GetParam();
  if (ranks > 4 && one_of(2) > 1) GTEST_SKIP() << "in the full tier";
  for (const Words& model : {kUntied, Words{"--bf16"} + llama_flags() + Words{"--ffn-hidden-size", "32"}}) {
    const Words flags = kSmallFsdp + model + kEvaluations + Words{"--global-batch-size", "16"};  // several microbatches
    const RunResult plain = train({.flags = flags, .ranks = ranks});
    for (const Words& way :
         {strategy("optim"), strategy("optim") + Words{"--overlap-grad-reduce", "--overlap-param-gather"}, kLast,
          kLast + slots(3, 2) + Words{"--fsdp-embedding-and-head", "sharded"}}) {
      SCOPED_TRACE(testing::PrintToString(way));
      const RunResult run = train({.flags = flags + way, .ranks = ranks});
      expect_same_state(run, plain);
      expect_units_moved(run, way[1] == "optim_grads_params", false);
    }
    // Summed in each microbatch gradients have other bits.
    const RunResult each = train({.flags = flags + kGradients, .ranks = ranks});
    EXPECT_FALSE(each.weights == plain.weights);
    expect_units_moved(each, false, true);
  }
}

TEST_P(FsdpReplicas, WithOneMicrobatchSumsAreTheSameWhenTheyAreMadeInEach) {
  const int ranks = GetParam();
  if (ranks > 4 && one_of(2) > 1) GTEST_SKIP() << "in the full tier";
  const Words flags = kSmallFsdp + kUntied + Words{"--global-batch-size", std::to_string(ranks)};
  const RunResult plain = train({.flags = flags, .ranks = ranks});
  for (const Words& way : {kGradients, kWeights, kWeights + Words{"--fsdp-embedding-and-head", "sharded"}}) {
    SCOPED_TRACE(testing::PrintToString(way));
    const RunResult run = train({.flags = flags + way, .ranks = ranks});
    expect_same_state(run, plain);
    expect_units_moved(run, way != kGradients, true);
  }
}

const Words kAll = kWeights + Words{"--fsdp-embedding-and-head", "sharded"};

// A model whose ends are sharded: one class of bits over slots, order of gathers, schedules and recomputation.
class FsdpEach : public testing::TestWithParam<Way> {
 protected:
  static const RunResult& want() {
    static const RunResult run = train({.flags = kSmallFsdp + kUntied + kEvaluations + kAll, .ranks = 2});
    return run;
  }
};
INSTANTIATE_TEST_SUITE_P(
    Fsdp, FsdpEach,
    testing::Values(Way{"one_slot", slots(1, 0), 2}, Way{"three_slots", slots(3, 1), 2},
                    Way{"prefetch_3_of_4", slots(4, 3), 2}, Way{"gpipe", schedule("gpipe"), 2},
                    Way{"zb_h1", schedule("zb-h1"), 2}, Way{"delayed", {"--delay-wgrad-compute"}, 2},
                    Way{"full", words("--recompute-granularity full"), 2},
                    Way{"full_2", slots(2, 0) + words("--recompute-granularity full --recompute-num-layers 2"), 2},
                    Way{"selective", words("--recompute-granularity selective --recompute-modules mlp core_attn"), 2},
                    Way{"pp2_1f1b", stages(2), 4}, Way{"pp2_interleaved", stages(2) + schedule("interleaved"), 4},
                    Way{"pp2_zb_v", stages(2) + schedule("zb-v"), 4},
                    Way{"pp2_dualpipe_v", stages(2) + schedule("dualpipe-v"), 4},
                    Way{"poisoned", {"--check-hazards"}, 2}),
    [](const auto& one) { return one.param.name; });

TEST_P(FsdpEach, HasOneClassOfBits) {
  const Words flags = kSmallFsdp + kUntied + kEvaluations + kAll + GetParam().flags;
  const RunResult run = train({.flags = flags, .ranks = GetParam().ranks});
  expect_same_state(run, want());
  expect_units_moved(run, true, true);
}

// The head's forward writes gradients; a schedule may keep them separate from those of its backward.
TEST(Fsdp, SchedulesOfAHeadInChunksHaveOneClassOfBits) {
  const Words flags = kSmallFsdp + kUntied + kEvaluations + kAll + Words{"--loss-chunk-size", "3", "--check-hazards"};
  const RunResult want = train({.flags = flags, .ranks = 2});
  EXPECT_EQ(want.hazards, 0);
  for (const Words& order : {schedule("gpipe"), schedule("zb-v"), schedule("zb-h1") + slots(3, 2)}) {
    SCOPED_TRACE(testing::PrintToString(order));
    expect_same_state(train({.flags = flags + order, .ranks = 2}), want);
  }
}

// Unsharded ends: compared with the same layout with optim_grads, and without hazards.
class FsdpLayouts : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(
    Fsdp, FsdpLayouts,
    testing::Values(Way{"tied", {}, 2},  //
                    Way{"tp2_sp_llama", kTensor + llama_flags() + Words{"--hidden-size", "32"}, 4},
                    Way{"tp2_overlapped_zb_h1", kTensor + Words{"--tp-comm-overlap"} + schedule("zb-h1"), 4},
                    Way{"cp2", {"--context-parallel-size", "2"}, 4},
                    Way{"pp2_tied", stages(2) + schedule("1f1b"), 4},  //
                    Way{"tp2_pp2_bf16", kTensor + stages(2) + schedule("dualpipe-v") + Words{"--bf16"}, 8}),
    [](const auto& one) { return one.param.name; });

TEST_P(FsdpLayouts, ShardedWeightsChangeNoBits) {
  const Words flags = kSmallFsdp + kEvaluations + GetParam().flags;
  const RunResult want = train({.flags = flags + kGradients, .ranks = GetParam().ranks});
  const RunResult run = train({.flags = flags + kWeights + Words{"--check-hazards"}, .ranks = GetParam().ranks});
  expect_same_state(run, want);
  expect_units_moved(run, true, true);
}

}  // namespace
}  // namespace megalith::test

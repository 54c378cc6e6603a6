// Ranks that shard experts: equal bits if sums have the same order, otherwise the same run. Checkpoints of other ranks
// load too. moe_test.cpp compares layouts with one rank.
#include <gtest/gtest.h>

#include "tests/unit/train/moe/moe_runs.h"

namespace megalith::test {
namespace {

class MoeRanks : public MoeTest {};
INSTANTIATE_TEST_SUITE_P(Models, MoeRanks, testing::Values(0, 1), name_of_moe);

// Each rank layout adds groups of experts in the same order: forward in bf16 too; backward has another order.
TEST_P(MoeRanks, FirstLossHasTheSameBitsAtOneNumberOfGroups) {
  const Words flags = model() + Words{"--moe-combine-groups", "4"};
  for (const Words& dtype : {Words{"--train-iters", "20"}, Words{"--bf16", "--train-iters", "1"}}) {
    const MoeResult want = train_experts(flags + dtype, {.data = 4});
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(ranks);
      const MoeResult got = train_experts(flags + dtype, {.data = 4, .expert = ranks});
      ASSERT_FALSE(got.run.losses.empty());
      EXPECT_EQ(got.run.losses[0], want.run.losses[0]);
      EXPECT_EQ(got.counts[0], want.counts[0]);
      EXPECT_TRUE(got.run.copies_agree);
      expect_losses_near(got.run, want.run);
    }
  }
}

// For every dispatcher, and with any concurrent work.
TEST_P(MoeRanks, DispatchersHaveTheSameBits) {
  const Words flags = model() + Words{"--bf16", "--hidden-dropout", "0.1", "--check-hazards"};
  for (const Layout& layout : {Layout{.data = 2, .expert = 2},
                               Layout{.tensor = 2, .sequence = true, .data = 2, .expert = 2, .expert_tensor = 2}}) {
    const MoeResult plain = train_experts(flags, layout);
    EXPECT_TRUE(plain.run.memory_as_planned);
    EXPECT_EQ(plain.run.hazards, 0);
    EXPECT_GT(plain.exchanges, 0);
    for (const Words& way : {Words{"--moe-token-dispatcher-type", "alltoall", "--moe-shared-expert-overlap"},
                             Words{"--moe-token-dispatcher-type", "allgather"},
                             Words{"--moe-token-dispatcher-type", "allgather", "--moe-shared-expert-overlap"}}) {
      SCOPED_TRACE(layout.name() + testing::PrintToString(way));
      const MoeResult run = train_experts(flags + way, layout);
      expect_same_state(run.run, plain.run);
      EXPECT_EQ(run.exchanges, way[1] == "allgather" ? 0 : plain.exchanges);
    }
  }
}

// Weight gradients after all backward_data of a chunk, eagerly and in graphs.
TEST_P(MoeRanks, DelayedWeightGradientsHaveTheSameBits) {
  const Words flags = model() + Words{"--bf16", "--hidden-dropout", "0.1", "--check-hazards"};
  const Words graphs{"--cuda-graph-impl", "local", "--cuda-graph-modules"};
  for (const Layout& layout :
       {Layout{.data = 2, .expert = 2}, Layout{.data = 4, .sharing = Sharing::kUnits, .expert = 2}}) {
    const MoeResult plain = train_experts(flags, layout);
    for (const Words& way :
         {Words{}, graphs + Words{"layer"}, graphs + Words{"attn", "moe_router", "moe_preprocess"}}) {
      SCOPED_TRACE(layout.name() + testing::PrintToString(way));
      const MoeResult run = train_experts(flags + Words{"--delay-wgrad-compute"} + way, layout);
      expect_same_bits(run, plain);
      EXPECT_EQ(run.replays > 0, !way.empty());
    }
  }
}

// Also if other ranks hold other experts from there on.
TEST_P(MoeRanks, ResumesWithExpertsOnOtherRanks) {
  const TestFolder folder;
  const Words flags = model() + Words{"--hidden-dropout", "0.1"};
  const Layout split{.data = 2, .sharing = Sharing::kOptimizer, .expert = 2};
  const MoeResult whole = train_experts(flags, split);
  train_experts(flags + Words{"--exit-interval", "4", "--save", folder.path("kept")}, split);
  const Words rest = flags + Words{"--load", folder.path("kept")};
  const MoeResult again = train_experts(rest, split);
  EXPECT_EQ(again.run.losses.back(), whole.run.losses.back());
  EXPECT_EQ(again.biases, whole.biases);
  EXPECT_EQ(again.run.weights, whole.run.weights);
  for (const Layout& layout : {Layout{.data = 2}, Layout{.data = 4, .expert = 4},
                               Layout{.data = 2, .sharing = Sharing::kOptimizer, .expert_tensor = 2}}) {
    SCOPED_TRACE(layout.name());
    const MoeResult elsewhere = train_experts(rest, layout);
    ASSERT_EQ(elsewhere.run.losses.size(), 2u);
    EXPECT_NEAR(elsewhere.run.loss_values.back() / whole.run.loss_values.back(), 1, 1e-5);
  }
}

}  // namespace
}  // namespace megalith::test

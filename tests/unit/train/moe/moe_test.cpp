// Models with experts on thread ranks. Every layout trains the model of one rank, including the routers' losses.
// Graphs, fusion and recompute change no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "apps/train/numerics_guard.h"
#include "core/ops/elementwise/elementwise.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"
#include "tests/unit/train/moe/moe_runs.h"

namespace megalith::test {
namespace {

void expect_near_one_rank(const MoeResult& got, const MoeResult& want, double of_gradients) {
  expect_losses_near(got.run, want.run);
  expect_norms_near(got.run, want.run, of_gradients);
  expect_gradients_near(got.run, want.run, of_gradients);
  for (const std::vector<float>& sums : got.sums) {
    for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], want.sums[0][i], 1e-5f * want.sums[0][i]) << i;
  }
  for (std::size_t i = 0; i < want.run.balancing_losses.size(); ++i)
    EXPECT_NEAR(got.run.balancing_losses[i], want.run.balancing_losses[i], 1e-5) << "step " << i + 1;
  for (const std::vector<std::int32_t>& counts : got.counts) EXPECT_EQ(counts, got.counts[0]);
  EXPECT_EQ(got.biases, want.biases);
  EXPECT_TRUE(got.run.memory_as_planned);
}

std::vector<Layout> expert_layouts() {
  return {{.tensor = 2, .sequence = true},
          {.pipeline = 2},
          {.data = 2, .sharing = Sharing::kOptimizer},
          {.context = 2},
          {.tensor = 4, .sequence = true},
          {.pipeline = 4},
          {.data = 4, .sharing = Sharing::kOptimizer},
          {.context = 4},
          {.tensor = 2, .sequence = true, .overlap = true, .pipeline = 2, .schedule = "zb-v"},
          {.tensor = 2,
           .sequence = true,
           .data = 2,
           .sharing = Sharing::kOverlapped,
           .context = 2,
           .communication = "all_gather"},
          {.data = 2, .expert = 2},
          {.data = 4, .sharing = Sharing::kOptimizer, .expert = 2},
          {.data = 2, .expert_tensor = 2},
          {.data = 4, .expert = 4},
          {.tensor = 2, .sequence = true, .data = 2, .expert = 2},
          {.pipeline = 2, .data = 2, .schedule = "zb-h1", .expert = 2},
          {.context = 2, .expert = 2},
          {.data = 4, .sharing = Sharing::kUnits, .expert = 2},
          {.data = 4, .expert = 2, .expert_tensor = 2},
          {.tensor = 2, .sequence = true, .sharing = Sharing::kOverlapped, .context = 2, .expert = 4},
          {.tensor = 2,
           .sequence = true,
           .pipeline = 2,
           .data = 2,
           .schedule = "interleaved",
           .sharing = Sharing::kExpertUnits,
           .context = 2,
           .expert = 4}};
}

class Moe : public MoeTest {};
INSTANTIATE_TEST_SUITE_P(Models, Moe, testing::Values(0, 1), name_of_moe);

TEST_P(Moe, GradientsOfOneStepAreThoseOfOneRank) {
  const Words flags = model() + Words{"--micro-batch-size", "2", "--train-iters", "1"};
  const MoeResult want = train_experts(flags, {});
  const std::size_t layers = GetParam() == 0 ? 4 : 3;
  ASSERT_EQ(want.sums[0].size(), 1 + 2 * layers);
  for (std::size_t i = 0; i < want.sums[0].size(); ++i)
    EXPECT_EQ(want.sums[0][i] > 0, i == 0 || i % 2 == 1 || GetParam() == 0) << i;  // the last one has no z losses
  ASSERT_EQ(want.counts[0].size(), 4 * layers);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto first = want.counts[0].begin() + static_cast<std::ptrdiff_t>(4 * layer);
    EXPECT_EQ(std::accumulate(first, first + 4, std::int64_t{0}), want.rows) << layer;
    EXPECT_GT(*std::max_element(first, first + 4), want.rows / 4) << layer;
  }
  // Balanced it is 1, and these routers are new; log(4)^2 of four logits close to 0.
  EXPECT_NEAR(want.run.balancing_losses.at(0), 1, 0.05);
  EXPECT_NEAR(want.run.z_losses.at(0), GetParam() == 0 ? 1.922 : 0, 0.05);
  EXPECT_EQ(want.biases.size(), GetParam() == 0 ? 0u : 3u);
  for (const auto& [name, bias] : want.biases) {
    EXPECT_EQ(*std::max_element(bias.begin(), bias.end()), 0.001f) << name;
    EXPECT_EQ(*std::min_element(bias.begin(), bias.end()), -0.001f) << name;
  }
  for (const Layout& layout : expert_layouts()) {
    SCOPED_TRACE(layout.name());
    const MoeResult got = train_experts(flags, layout);
    expect_near_one_rank(got, want, 5e-6);
    EXPECT_EQ(got.counts[0], want.counts[0]);
  }
}

TEST_P(Moe, LossesOfTwentyStepsAreThoseOfOneRank) {
  const Words flags = model() + Words{"--hidden-dropout", "0.1", "--train-iters", "20"};
  const MoeResult want = train_experts(flags, {});
  EXPECT_LT(want.run.loss_values.back(), want.run.loss_values.front() - 0.04);
  const std::vector<Layout> all = expert_layouts();
  for (std::size_t i = static_cast<std::size_t>(GetParam()); i < all.size();
       i += 2 * static_cast<std::size_t>(one_of(2))) {
    SCOPED_TRACE(all[i].name());
    expect_near_one_rank(train_experts(flags, all[i]), want, 1e-3);
  }
}

TEST_P(Moe, ChangesNoBitWithGraphsFusionAndRecompute) {
  const Words flags = model() + Words{"--bf16", "--hidden-dropout", "0.1", "--check-hazards"};
  const Words selective{"--recompute-granularity", "selective", "--recompute-modules"};
  const Words graphs{"--cuda-graph-impl", "local", "--cuda-graph-modules"};
  const Words fused{"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"};
  std::vector<Words> ways{graphs + Words{"layer"},
                          graphs + Words{"attn", "moe"},
                          fused,
                          selective + Words{"moe"},
                          selective + Words{"moe_act", "layernorm"} + fused,
                          {"--recompute-granularity", "full"},
                          {"--delay-wgrad-compute"},
                          selective + Words{"moe"} + graphs + Words{"layer"}};
  if (GetParam() == 1) {  // with dense layers and shared experts
    ways.push_back(selective + Words{"shared_experts", "moe_act"} + graphs + Words{"mlp", "moe"});
    ways.push_back(selective + Words{"moe", "mlp", "mlp_act"} + graphs + Words{"layer"});
  }
  for (const Layout& layout :
       {Layout{}, Layout{.tensor = 2, .sequence = true, .data = 2, .sharing = Sharing::kOptimizer},
        Layout{.data = 2, .sharing = Sharing::kOptimizer, .expert = 2}}) {
    const MoeResult plain = train_experts(flags, layout);
    for (std::size_t w = layout.expert - 1; w < ways.size(); w += layout.ranks() == 1 ? 1 : 3) {
      SCOPED_TRACE(layout.name() + testing::PrintToString(ways[w]));
      const MoeResult run = train_experts(flags + ways[w], layout);
      expect_same_bits(run, plain);
    }
  }
}

// Also with sharded units, whose gathers and reductions run between the layers.
TEST_P(Moe, ReplaysWithTheSameBits) {
  const Words flags = model() + Words{"--bf16", "--hidden-dropout", "0.1", "--check-hazards"};
  const Words graphs{"--cuda-graph-impl", "local", "--cuda-graph-modules"};
  const Words sharded = strategy("optim_grads_params");
  const int routers = GetParam() == 0 ? 4 : 3;
  const std::vector<std::pair<Words, int>> cases{{{"attn"}, 8},
                                                 {{"moe_router"}, 2 * routers},
                                                 {{"attn", "moe_router", "moe_preprocess"}, 8 + 2 * routers},
                                                 {{"moe"}, 2 * routers},
                                                 {{"layer"}, 2}};
  for (const Layout& layout : {Layout{}, Layout{.data = 2}, Layout{.data = 4, .expert = 2}}) {
    const Words base = layout.data == 1 ? flags : flags + sharded;
    const MoeResult plain = train_experts(base, layout);
    for (const auto& [modules, count] : cases) {
      SCOPED_TRACE(layout.name() + testing::PrintToString(modules));
      const MoeResult run = train_experts(base + graphs + modules, layout);
      expect_same_bits(run, plain);
      if (layout.data == 1) {
        EXPECT_EQ(run.graphs, count);
      }
      EXPECT_GT(run.replays, 5 * run.graphs);
    }
  }
}

// Tensor-parallel ranks hold copies of experts too, even if nothing else is replicated. All of them shard the experts'
// state, in instances too; bits equal unsharded runs.
TEST_P(Moe, SharesOutExpertsOverAllRanksThatHoldThem) {
  const Words flags = model() + Words{"--bf16", "--hidden-dropout", "0.1", "--check-hazards"};
  const Layout both{.tensor = 2, .sequence = true, .data = 2, .context = 1 + GetParam()};
  struct Way {
    Layout layout;
    Words flags;
    int instances = 1;
  };
  const Words whole{"--data-parallel-sharding-strategy", "optim_grads_params", "--fsdp-reduce-grads", "last"};
  int number = GetParam();
  for (const Way& way :
       {Way{{.data = 2}, whole}, Way{{.tensor = 2, .sequence = true}, whole},
        Way{{.tensor = 2, .sequence = true}, {"--use-distributed-optimizer"}}, Way{both, whole},
        Way{both, {"--data-parallel-sharding-strategy", "optim", "--overlap-grad-reduce", "--overlap-param-gather"}},
        Way{both, {"--use-distributed-optimizer", "--num-distributed-optimizer-instances", "2"}, 2},
        Way{{.data = 4, .expert = 2}, whole}, Way{{.data = 2, .expert = 2}, whole},
        Way{both,
            {"--use-distributed-optimizer", "--expert-data-parallel-sharding-strategy", "optim_grads_params",
             "--fsdp-reduce-grads", "last"}},
        Way{{.data = 4, .expert = 2}, whole + Words{"--num-distributed-optimizer-instances", "2"}, 2},
        Way{both, whole + Words{"--num-distributed-optimizer-instances", "2", "--outer-dp-sharding-strategy", "optim"},
            2}}) {
    if (number++ % one_of(2) != 0) continue;
    SCOPED_TRACE(way.layout.name() + testing::PrintToString(way.flags));
    const auto check = [&](Rank& rank) {
      const int dense = way.layout.data * way.layout.context / way.instances;
      for (const ParameterUnit& unit : rank.model.gpt.parameters->units()) {
        const bool experts = unit.name.ends_with("experts");
        EXPECT_EQ(unit.kind == UnitKind::kExperts, experts) << unit.name;
        EXPECT_EQ(unit.shard.ranks, experts ? dense * way.layout.tensor / way.layout.expert : dense) << unit.name;
        EXPECT_EQ(unit.weight_shard.numel(), unit.numel / unit.shard.ranks) << unit.name;
      }
    };
    const MoeResult plain = train_experts(flags, way.layout);
    const RunResult run =
        train({.flags = flags + way.layout.flags() + way.flags, .ranks = way.layout.ranks(), .customize = check});
    if (way.instances == 1) expect_same_run(run, plain.run);
    EXPECT_NEAR(run.loss_values.back() / plain.run.loss_values.back(), 1, 1e-3);
    EXPECT_TRUE(run.copies_agree);
    EXPECT_TRUE(run.memory_as_planned);
    EXPECT_EQ(run.hazards, 0);
  }
}

// A rank's part of an expert is compared with those of the other ranks that hold it.
TEST_P(Moe, TheComparisonOfReplicasFindsAnExpertThatDiffers) {
  for (const Layout& layout : {Layout{.tensor = 2, .sequence = true, .data = 2}, Layout{.data = 4, .expert = 2}}) {
    SCOPED_TRACE(layout.name());
    const std::map<int, std::string> reported = warned_replicas(model(), way_of(layout), [](Rank& rank, int index) {
      const auto& units = rank.model.gpt.parameters->units();
      const auto experts = std::ranges::find(units, UnitKind::kExperts, &ParameterUnit::kind);
      if (index == 1) launch(rank.streams.compute, Fill{.x = experts->weights.slice(0, 5, 1), .value = 3});
    });
    EXPECT_THAT(reported, testing::SizeIs(4 / static_cast<std::size_t>(layout.expert)));
    for (const auto& [rank, message] : reported)
      EXPECT_THAT(message, AllOf(HasSubstr("mlp.experts.linear_gate.weight"), HasSubstr("on rank 1")));
  }
}

// From a checkpoint the run continues with equal bits, on other ranks too.
TEST_P(Moe, ResumesBitForBit) {
  const TestFolder folder;
  const Words flags = model() + Words{"--hidden-dropout", "0.1"};
  const Layout split{.tensor = 2, .sequence = true, .pipeline = 2};
  const MoeResult whole = train_experts(flags, {});
  train_experts(flags + Words{"--exit-interval", "4", "--save", folder.path("kept")}, {});
  const Words rest = flags + Words{"--load", folder.path("kept")};
  const MoeResult again = train_experts(rest, {}), elsewhere = train_experts(rest, split);
  ASSERT_EQ(again.run.losses.size(), 2u);
  EXPECT_THAT(whole.run.losses, testing::Contains(again.run.losses[0]));
  EXPECT_EQ(again.run.losses.back(), whole.run.losses.back());
  EXPECT_EQ(again.biases, whole.biases);
  EXPECT_EQ(again.run.weights, whole.run.weights);
  EXPECT_EQ(elsewhere.biases, whole.biases);
  EXPECT_NEAR(elsewhere.run.loss_values.back() / whole.run.loss_values.back(), 1, 1e-5);
}

}  // namespace
}  // namespace megalith::test

// Experts without a gate, experts with biases, and norms with weights around 0, on thread ranks. Every layout trains
// the model of one rank. Graphs, fusion, recompute, offload and sharding change no bit.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/tier.h"
#include "tests/unit/train/moe/moe_runs.h"

namespace megalith::test {
namespace {

std::vector<Family> expert_kinds() {
  const Words of_all = words(
      "--position-embedding-type rope --num-experts 4 --ffn-hidden-size 32 "
      "--untie-embeddings-and-output-weights --lr-warmup-iters 2 --lr-decay-iters 20");
  return {{"squared_relu_biases",
           of_all + words("--squared-relu --apply-layernorm-1p --moe-aux-loss-coeff 0.1 --moe-ffn-hidden-size 80")},
          {"swiglu_biases", of_all + words("--swiglu --normalization RMSNorm --qk-layernorm --apply-layernorm-1p "
                                           "--moe-layer-freq 2 --moe-router-topk 3")},
          {"gelu", of_all + words("--activation-func gelu --disable-bias-linear --normalization RMSNorm "
                                  "--moe-layer-freq [0]+[1]*3 --moe-shared-expert-intermediate-size 24 "
                                  "--moe-shared-expert-gate")}};
}

class ExpertKinds : public testing::TestWithParam<int> {
 protected:
  static Words model() { return sizes_for({}) + expert_kinds()[static_cast<std::size_t>(GetParam())].flags; }
};
INSTANTIATE_TEST_SUITE_P(Models, ExpertKinds, testing::Values(0, 1, 2),
                         [](const auto& kind) { return expert_kinds()[static_cast<std::size_t>(kind.param)].name; });

TEST_P(ExpertKinds, GradientsOfOneStepAreThoseOfOneRank) {
  const Words flags = model() + Words{"--micro-batch-size", "2", "--train-iters", "1"};
  const MoeResult want = train_experts(flags, {});
  const bool biased = GetParam() != 2;
  EXPECT_EQ(std::ranges::any_of(want.run.gradients,
                                [](const auto& tensor) { return tensor.first.ends_with("experts.linear_fc2.bias"); }),
            biased);
  const std::vector<Layout> all = {{.tensor = 2, .sequence = true},
                                   {.pipeline = 2},
                                   {.context = 2},
                                   {.data = 2, .expert = 2},
                                   {.data = 2, .expert_tensor = 2},
                                   {.data = 4, .sharing = Sharing::kUnits, .expert = 2},
                                   {.data = 4, .expert = 2, .expert_tensor = 2},
                                   {.data = 4, .sharing = Sharing::kUnits, .expert_tensor = 2},
                                   {.tensor = 2, .sequence = true, .data = 2, .expert = 2},
                                   {.pipeline = 2, .data = 2, .schedule = "zb-h1", .expert = 2}};
  for (const Layout& layout : all) {
    SCOPED_TRACE(layout.name());
    const MoeResult got = train_experts(flags, layout);
    expect_losses_near(got.run, want.run);
    expect_norms_near(got.run, want.run, 5e-6);
    expect_gradients_near(got.run, want.run, 5e-6);
    EXPECT_EQ(got.counts[0], want.counts[0]);
    EXPECT_TRUE(got.run.memory_as_planned);
    EXPECT_TRUE(got.run.copies_agree);
  }
}

TEST_P(ExpertKinds, ChangesNoBitWithGraphsRecomputeOffloadAndSharding) {
  Words flags = model() + Words{"--bf16", "--hidden-dropout", "0.1", "--check-hazards"};
  if (GetParam() != 1) flags = flags + Words{"--moe-expert-capacity-factor", "1.25"};
  const Words selective{"--recompute-granularity", "selective", "--recompute-modules"};
  const Words graphs{"--cuda-graph-impl", "local", "--cuda-graph-modules"};
  const Words fused{"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"};
  const std::vector<Words> ways{graphs + Words{"layer"},
                                graphs + Words{"attn", "moe"} + fused,
                                selective + Words{"moe_act", "layernorm"} + offload({"fused_group_mlp"}),
                                selective + Words{"moe"},
                                {"--delay-wgrad-compute"},
                                offload({"fused_group_mlp", "attn_norm"}) + graphs + Words{"attn", "moe_router"},
                                {"--recompute-granularity", "full"},
                                selective + Words{"moe_act"} + graphs + Words{"moe"}};
  for (const Layout& layout : {Layout{}, Layout{.data = 2, .expert = 2}, Layout{.data = 2, .expert_tensor = 2}}) {
    const MoeResult plain = train_experts(flags, layout);
    for (std::size_t w = 0; w < ways.size(); w += layout.ranks() == 1 ? 1 : 2) {
      SCOPED_TRACE(layout.name() + testing::PrintToString(ways[w]));
      expect_same_bits(train_experts(flags + ways[w], layout), plain);
    }
  }
}

// Checkpoints hold biases once, whatever ranks hold copies.
TEST_P(ExpertKinds, ResumeOnOtherRanks) {
  const TestFolder folder;
  const Words flags = model();
  const Layout columns{.data = 2, .expert_tensor = 2};
  const MoeResult whole = train_experts(flags, columns);
  train_experts(flags + Words{"--exit-interval", "4", "--save", folder.path("kept")}, columns);
  const Words rest = flags + Words{"--load", folder.path("kept")};
  const MoeResult again = train_experts(rest, columns);
  EXPECT_EQ(again.run.losses.back(), whole.run.losses.back());
  EXPECT_EQ(again.run.weights, whole.run.weights);
  for (const Layout& layout : {Layout{}, Layout{.data = 2, .expert = 2}}) {
    SCOPED_TRACE(layout.name());
    EXPECT_NEAR(train_experts(rest, layout).run.loss_values.back() / whole.run.loss_values.back(), 1, 1e-5);
  }
}

// Norms start as the same function.
TEST(ExpertKindFlags, ChangeTheModel) {
  const Words base = sizes_for({}) + words(
                                         "--position-embedding-type rope --num-experts 4 --ffn-hidden-size 32 "
                                         "--init-method-std 0.3");
  const Words unbiased{"--disable-bias-linear"};
  const auto losses = [&](const Words& more) { return train_experts(base + more, {}).run.loss_values; };
  const auto gelu = losses(unbiased);
  for (const Words& flags : {Words{}, unbiased + Words{"--squared-relu"}, unbiased + Words{"--activation-func", "gelu"},
                             unbiased + Words{"--swiglu"}}) {
    SCOPED_TRACE(testing::PrintToString(flags));
    EXPECT_NE(losses(flags).back(), gelu.back());
  }
  const auto zero_centered = losses(unbiased + Words{"--apply-layernorm-1p"});
  EXPECT_EQ(zero_centered.front(), gelu.front());  // 1 + 0
}

}  // namespace
}  // namespace megalith::test

// --overlap-moe-expert-parallel-comm: the bits of a step whose exchanges have no other microbatch's work next to them.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/train/moe/moe_runs.h"

namespace megalith::test {
namespace {

class MoeOverlap : public MoeTest {};
INSTANTIATE_TEST_SUITE_P(Models, MoeOverlap, testing::Values(0, 1), name_of_moe);

const Words kPaired{"--overlap-moe-expert-parallel-comm"};
const Words kCaptures{"--cuda-graph-impl", "local", "--cuda-graph-modules"};

void expect_same(const Words& flags, const Layout& layout, const std::vector<Words>& ways) {
  const MoeResult plain = train_experts(flags, layout);
  for (const Words& way : ways) {
    SCOPED_TRACE(layout.name() + testing::PrintToString(way));
    const MoeResult run = train_experts(flags + kPaired + way, layout);
    expect_same_bits(run, plain);
    EXPECT_EQ(run.replays > 0, std::ranges::count(way, "--cuda-graph-impl") > 0);
  }
}

TEST_P(MoeOverlap, HasTheSameBits) {
  const Words flags = model() + words("--bf16 --hidden-dropout 0.1 --check-hazards");
  const std::vector<Words> ways{{},
                                words("--moe-shared-expert-overlap --moe-token-dispatcher-type allgather"),
                                words("--moe-shared-expert-overlap --delay-wgrad-compute"),
                                kCaptures + words("layer --moe-shared-expert-overlap"),
                                kCaptures + words("attn moe_router moe_preprocess"),
                                kCaptures + words("moe")};
  expect_same(flags, {.data = 2, .expert = 2}, ways);
  expect_same(flags, {.tensor = 2, .sequence = true, .data = 2, .expert = 2, .expert_tensor = 2},
              {{}, words("--tp-comm-overlap"), kCaptures + words("layer --tp-comm-overlap")});
}

TEST_P(MoeOverlap, WithShardedUnits) {
  const Words flags = model() + words("--bf16 --hidden-dropout 0.1 --check-hazards");
  for (const Sharing sharing : {Sharing::kOptimizer, Sharing::kUnits})
    expect_same(flags, {.data = 4, .sharing = sharing, .expert = 2},
                {{},
                 words("--moe-shared-expert-overlap"),
                 kCaptures + words("layer"),
                 kCaptures + words("attn moe_router moe_preprocess")});
}

// Pairs alternate between two columns: the last microbatch runs alone in either. Copies reach over several pieces.
TEST_P(MoeOverlap, OfAnyNumberOfMicrobatches) {
  const Words offload = words("--fine-grained-activation-offloading --min-offload-bytes 0 --offload-modules");
  const Words all = offload + words("expert_fc1 core_attn attn_norm moe_act mlp_norm attn_proj qkv_linear");
  for (const char* batch : {"2", "6", "10", "14"}) {
    const Words flags = model() + words("--bf16 --check-hazards --train-iters 3") + Words{"--global-batch-size", batch};
    expect_same(flags, {.data = 2, .expert = 2},
                {{},
                 all,
                 all + words("--offload-distance 2"),
                 all + words("--offload-distance 4") + kCaptures + words("layer")});
  }
  Words flags = model() + words("--bf16 --check-hazards --train-iters 3 --num-layers 8 --global-batch-size 24");
  if (GetParam() == 1) flags = flags + Words{"--moe-layer-freq", "[0]+[1]*7"};
  expect_same(flags, {.pipeline = 2, .data = 2, .schedule = "interleaved", .expert = 2},
              {offload + words("core_attn attn_proj --offload-distance 2"), all + words("--offload-distance 2")});
}

TEST_P(MoeOverlap, WithRecomputeAndOffload) {
  const Words flags = model() + words("--bf16 --hidden-dropout 0.1 --check-hazards");
  const Words selective = words("--recompute-granularity selective --recompute-modules");
  const Words offload = words("--fine-grained-activation-offloading --min-offload-bytes 0 --offload-modules");
  expect_same(flags, {.data = 2, .expert = 2},
              {selective + words("core_attn layernorm"), selective + words("moe"),
               words("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
               selective + words("moe --recompute-num-layers 1"),
               selective + words("moe --recompute-num-layers 1") + kCaptures + words("layer"),
               words("--recompute-granularity full --recompute-method block --recompute-num-layers 1") + kCaptures +
                   words("layer"),
               offload + words("expert_fc1 core_attn"),
               offload + words("expert_fc1 moe_act attn_norm") + kCaptures + words("layer")});
}

TEST_P(MoeOverlap, WithinPipelines) {
  const Words flags = model() + words("--bf16 --hidden-dropout 0.1 --check-hazards");
  for (const char* schedule : {"1f1b", "zb-h1", "gpipe", "zb-v", "dualpipe-v", "interleaved"})
    expect_same(flags, {.pipeline = 2, .data = 2, .schedule = schedule, .expert = 2}, {{}, kCaptures + words("layer")});
}

}  // namespace
}  // namespace megalith::test

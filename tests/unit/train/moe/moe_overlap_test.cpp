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
                {{}, kCaptures + words("layer"), kCaptures + words("attn moe_router moe_preprocess")});
}

TEST_P(MoeOverlap, WithRecomputeAndOffload) {
  const Words flags = model() + words("--bf16 --hidden-dropout 0.1 --check-hazards");
  const Words selective = words("--recompute-granularity selective --recompute-modules");
  const Words offload = words("--fine-grained-activation-offloading --min-offload-bytes 0 --offload-modules");
  expect_same(flags, {.data = 2, .expert = 2},
              {selective + words("core_attn layernorm"), selective + words("moe"),
               words("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
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

// Offloaded activations of experts: dp 4 ep 4 pp 2 with 2 chunks a stage on 8 ranks. Dense layers and experts
// alternate; bits equal keeping, for any choice of slots.
#include <gtest/gtest.h>

#include "tests/support/tier.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

const Words kModel = words(
    "--num-layers 8 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 1 "
    "--global-batch-size 16 --train-iters 3 --bf16 --swiglu --disable-bias-linear --ffn-hidden-size 32 "
    "--num-experts 8 --moe-ffn-hidden-size 16 --moe-router-topk 2 --moe-layer-freq 2 "
    "--expert-model-parallel-size 4 --pipeline-model-parallel-size 2 "
    "--num-layers-per-virtual-pipeline-stage 2");

RunResult run_of_eight(const Words& more) { return train({.flags = kModel + more, .ranks = 8}); }

void expect_same(const RunResult& got, const RunResult& want) {
  expect_same_state(got, want);
  for (const RankActivity& rank : got.ranks) {
    EXPECT_GT(rank.slots, 0);
    EXPECT_GT(rank.offload.bytes_out, 0);
    EXPECT_EQ(rank.offload.bytes_out, rank.offload.bytes_back);
  }
}

Words checked_offload(const Words& kinds) { return Words{"--check-hazards"} + offload(kinds); }

TEST(MoeOffload, EightRanksHaveTheBitsOfKeeping) {
  const RunResult keep = run_of_eight({});
  const Words fused = {"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"}, near = {"--offload-distance", "0"};
  const Words experts = checked_offload({"expert_fc1", "moe_act"}) + near;
  const Words all = checked_offload(
      {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "fc1", "act", "fc2", "fused_group_mlp"});
  const std::vector<Words> ways = {experts, fused + all, checked_offload({"qkv_linear"}) + near, fused + experts, all};
  for (std::size_t i = 0; i < ways.size() / static_cast<std::size_t>(one_of(2)); ++i) {
    SCOPED_TRACE(testing::PrintToString(ways[i]));
    expect_same(run_of_eight(ways[i]), keep);
  }
}

}  // namespace
}  // namespace megalith::test

// Offloaded activations: the bits of the same run that keeps them on the device. Runs cover every schedule, sharding
// and graphs. Each copy out has its copy back, and no memory beyond the plan is used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tier.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

const Words kEvaluatedSteps = kEvaluations + Words{"--train-iters", "3"};
const Words kAllMoved = offload({"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "fc1", "act", "fc2"});

// Each moving slot moves out and back once per microbatch.
void expect_all_moved(const RunResult& run, std::int64_t steps, std::int64_t microbatches, std::int64_t chunks) {
  EXPECT_GT(expect_moved(run, steps * microbatches), 0);
  for (const RankActivity& rank : run.ranks)
    EXPECT_GE(rank.host_planned, static_cast<std::size_t>(rank.slot_bytes) / static_cast<std::size_t>(chunks));
}

struct OffloadCase {
  std::string name;
  Layout layout;
  Words more = {};
};
void PrintTo(const OffloadCase& one, std::ostream* out) { *out << one.name; }

class Offload : public testing::TestWithParam<OffloadCase> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts, Offload,
    testing::Values(
        OffloadCase{"plain", {}},                                                                           //
        OffloadCase{"llama_bf16", {}, Words{"--bf16"} + llama_flags() + Words{"--ffn-hidden-size", "32"}},  //
        OffloadCase{"gpipe", {.schedule = "gpipe"}},                                                        //
        OffloadCase{"pp2", {.pipeline = 2}},                                                                //
        OffloadCase{"pp2_interleaved", {.pipeline = 2, .schedule = "interleaved"}},                         //
        OffloadCase{"pp2_zb_h1", {.pipeline = 2, .schedule = "zb-h1"}},                                     //
        OffloadCase{"pp2_zb_v", {.pipeline = 2, .schedule = "zb-v"}},                                       //
        OffloadCase{"pp2_dualpipe_v", {.pipeline = 2, .schedule = "dualpipe-v"}},                           //
        OffloadCase{"tp2_sp_overlap", {.tensor = 2, .sequence = true, .overlap = true}},                    //
        OffloadCase{"tp2_pp2_zb_h1",
                    {.tensor = 2, .sequence = true, .overlap = true, .pipeline = 2, .schedule = "zb-h1"}},
        OffloadCase{"cp2", {.context = 2}},                                       //
        OffloadCase{"dp2_sharded", {.data = 2, .sharing = Sharing::kOptimizer}},  //
        OffloadCase{"dp2_units", {.data = 2, .sharing = Sharing::kUnits}},        //
        OffloadCase{"pp2_units_zb_v", {.pipeline = 2, .data = 2, .schedule = "zb-v", .sharing = Sharing::kUnits}}),
    [](const auto& one) { return one.param.name; });

TEST_P(Offload, HasTheBitsOfKeeping) {
  const auto& [name, layout, more] = GetParam();
  const Words flags = sizes_for(layout) + layout.flags() + kEvaluatedSteps + more + Words{"--hidden-dropout", "0.1"};
  const RunResult keep = train({.flags = flags, .ranks = layout.ranks()});
  const std::int64_t microbatches = 8 / layout.data, chunks = layout.chunks();
  for (const Words& way : {Words{"--check-hazards"}, Words{"--cuda-graph-impl", "local"}}) {
    SCOPED_TRACE(way[0]);
    const RunResult run = train({.flags = flags + kAllMoved + way, .ranks = layout.ranks()});
    expect_same_state(run, keep);
    expect_all_moved(run, 3, microbatches, chunks);
    for (const RankActivity& rank : run.ranks)  // a graph signals when a layer's activations are written
      EXPECT_EQ(rank.offload.from_within > 0, way[0] == "--cuda-graph-impl");
  }
}

const Words kSmallOffload = {"--hidden-size",       "16", "--seq-length",     "8",   "--micro-batch-size", "1",
                             "--global-batch-size", "4",  "--hidden-dropout", "0.1", "--num-layers",       "4"};

// Leaves out each event wait, like Hazards.EverySuppressedWaitIsFound.
#if !defined(__SANITIZE_THREAD__)
TEST(OffloadRun, EverySuppressedWaitIsFound) {
  const Words graphs = {"--cuda-graph-impl", "local"}, kinds = offload({"attn_norm", "act", "core_attn"});
  const Words experts =
      llama_flags() + words(
                          "--ffn-hidden-size 32 --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 "
                          "--expert-model-parallel-size 2");
  const Words units = words("--data-parallel-sharding-strategy optim_grads_params --eval-interval 1 --eval-iters 1");
  struct Moved {
    Words flags;
    int ranks = 1;
    int after = 0;  // waits after the last step, for gathers of a next one
    int stride = one_of(5);
  };
  for (const Moved& way : {Moved{kinds}, Moved{kinds + graphs}, Moved{kinds + units, 2, 2, one_of(31)},
                           // Rows from another rank; only the arrived ones move.
                           Moved{offload({"expert_fc1", "moe_act"}) + experts, 2, 0, one_of(31)}}) {
    SCOPED_TRACE(testing::PrintToString(way.flags));
    const Words flags =
        kSmallOffload + way.flags + Words{"--train-iters", "2", "--global-batch-size", "2", "--check-hazards"};
    expect_each_wait_needed(40, flags, way.ranks, way.stride, way.after);
  }
}
#endif

// A fused MLP of experts without one of its kinds: only that kind's bytes, copies and waits are missing.
TEST(OffloadRun, AKindLeftOutOfAFusedMlpIsAllThatStays) {
  const Words flags = kSmallOffload + llama_flags() +
                      words(
                          "--ffn-hidden-size 32 --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 24 "
                          "--moe-grouped-gemm --use-transformer-engine-op-fuser --train-iters 2");
  const auto run = [&](const Words& kinds) { return train({.flags = flags + kinds}); };
  const RunResult keep = run({}), all = run(offload({"fused_group_mlp"})), alone = run(offload({"moe_act"})),
                  without = run(offload({"expert_fc1", "expert_fc2"}));
  const RankActivity &of_all = all.ranks[0], &of_alone = alone.ranks[0], &of_others = without.ranks[0];
  EXPECT_GT(of_alone.slots, 0);
  EXPECT_GT(of_others.slots, 0);
  EXPECT_EQ(of_all.slots, of_others.slots + of_alone.slots);
  EXPECT_EQ(of_all.offload.offloads, of_others.offload.offloads + of_alone.offload.offloads);
  EXPECT_EQ(of_all.offload.bytes_out, of_others.offload.bytes_out + of_alone.offload.bytes_out);
  // Two waits for each copy and its memory, out and back; with other kinds one of them is shared.
  EXPECT_EQ(alone.event_waits - keep.event_waits, 4 * of_alone.offload.offloads);
  EXPECT_EQ(all.event_waits - without.event_waits, 3 * of_alone.offload.offloads);
}

// The caller of the step catches an exception while slots are on their way out, on the host, or on their way back.
TEST(OffloadRun, AStepThatBrokeOffChangesNoBitsOfTheNext) {
  for (const auto& [point, segment] :
       {std::pair{HookPoint::kPostForward, 3}, {HookPoint::kPreBackward, 5}, {HookPoint::kPostWeight, 4}}) {
    SCOPED_TRACE(name_of(point));
    expect_nothing_left_of_a_broken_step({.flags = kSmallOffload + kAllMoved + Words{"--check-hazards"}},
                                         {.point = point, .segment = segment, .microbatch = 1});
  }
}

// The reason is found in the rerun of a step, also if freed memory is NaN.
TEST(OffloadRun, ASkippedStepIsExplained) {
  // Calls 5 to 8 are of step 2, 9 to 12 of the one that is dropped.
  const auto poisoned = poison({.calls = {6, 14}, .segment = 3, .unit = 2});
  const Words flags = kSmallOffload + Words{"--lr-decay-style", "constant", "--train-iters", "4"};
  const RunResult plain = train({.flags = flags, .prepare = poisoned});
  EXPECT_EQ(plain.skipped_steps, 1);
  for (const Words& way : {Words{"--check-hazards"}, Words{"--check-hazards", "--cuda-graph-impl", "local"}}) {
    testing::internal::CaptureStderr();
    const RunResult run = train({.flags = flags + kAllMoved + way, .prepare = poisoned});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::HasSubstr("layer 1 attention, backward_weight, microbatch 1: fill wrote nan to \"gradient"));
    EXPECT_EQ(run.hazards, 0);
    EXPECT_EQ(run.skipped_steps, 1);
    expect_same_run(run, plain);
  }
}

}  // namespace
}  // namespace megalith::test

// Plans of offloaded activations in complete steps, without computing anything.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "apps/planning/plan_steps.h"
#include "apps/summary/format_actions.h"
#include "apps/summary/offload_report.h"
#include "tests/support/matchers.h"
#include "tests/support/test_folder.h"
#include "tests/support/tier.h"
#include "tests/unit/plan/offload_support.h"

namespace megalith::test {
namespace {

// Bytes of a microbatch that move, by kind.
std::map<std::string, std::size_t> moving(const StepPlans& plans) {
  std::map<std::string, std::size_t> bytes;
  for (const OffloadSlot& slot : plans.offload.points.slots) bytes[std::string(name_of(slot.kind))] += slot.bytes;
  return bytes;
}

TEST(OffloadPlan, MovesEachKindOfADenseLayer) {
  const StepPlans keeps = plans_of({});
  EXPECT_TRUE(keeps.offload.rows.empty());
  EXPECT_EQ(keeps.host.peak_bytes, 0u);
  // 32 tokens of width 64 in fp32, 4 heads, FFN of 256; 3 of 4 layers, as the last one's come straight back.
  constexpr std::size_t kRow = 32 * 4, kLayers = 3;
  const std::map<std::string, std::size_t> want = {{"attn_norm", 64},     {"qkv_linear", 64}, {"core_attn", 3 * 64},
                                                   {"attn_proj", 64 + 4}, {"mlp_norm", 64},   {"fc1", 64},
                                                   {"act", 256},          {"fc2", 256}};
  for (const auto& [kind, width] : want) {
    SCOPED_TRACE(kind);
    const StepPlans plans = plans_of(offload({kind}));
    const std::map<std::string, std::size_t> moved = moving(plans);
    ASSERT_EQ(moved.size(), 1u);
    // Only the inner layers are equal: the first norm's input is the embedding's output.
    EXPECT_EQ(moved.at(kind), kLayers * width * kRow);
    EXPECT_EQ(plans.host.peak_bytes, kLayers * width * kRow);  // one microbatch in flight
    EXPECT_LT(plans.train.live_bytes, keeps.train.live_bytes);
    EXPECT_EQ(plans.offload.kept_peak_bytes, keeps.train.peak_bytes);
  }
}

TEST(OffloadPlan, TheLeastSizeCountsElementsAsMegatronDoes) {
  for (const Words& dtype : {Words{}, Words{"--bf16"}}) {
    SCOPED_TRACE(dtype.size());
    const auto kinds = [&](std::int64_t least) {
      std::vector<std::string> names;
      const Words flags = {"--fine-grained-activation-offloading", "--offload-modules",  "fc1", "act",
                           "--min-offloaded-tensor-size",          std::to_string(least)};
      for (const auto& [kind, bytes] : moving(plans_of(dtype + flags))) names.push_back(kind);
      return names;
    };
    EXPECT_THAT(kinds(32 * 64), testing::ElementsAre("act", "fc1"));  // 32 tokens of width 64, of FFN 256
    EXPECT_THAT(kinds(32 * 64 + 1), testing::ElementsAre("act"));
    EXPECT_THAT(kinds(32 * 256), testing::ElementsAre("act"));
    EXPECT_THAT(kinds(32 * 256 + 1), testing::IsEmpty());
  }
}

TEST(OffloadPlan, OptingOutOneKindOfExpertsLowersBytesByItsOwn) {
  for (const Words& fused : {Words{}, Words{"--use-transformer-engine-op-fuser", "--moe-grouped-gemm"}}) {
    SCOPED_TRACE(fused.size());
    const auto all = moving(plans_of(kExperts + fused + offload({"fused_group_mlp"})));
    EXPECT_EQ(all.size(), 3u);
    for (const auto& [kind, bytes] : all) {
      Words others;
      for (const auto& [other, _] : all) {
        if (other != kind) others.push_back(other);
      }
      auto want = all;
      want.erase(kind);
      EXPECT_GT(bytes, 0u);
      EXPECT_EQ(moving(plans_of(kExperts + fused + offload(others))), want);
      EXPECT_EQ(moving(plans_of(kExperts + fused + offload({kind}))), (std::map{std::pair{kind, bytes}}));
    }
  }
}

// The group moves the kinds that are kept, with the bytes of naming them.
TEST(OffloadPlan, TheGroupOfExpertsMovesWhatIsKept) {
  const Words recompute{"--recompute-granularity", "selective", "--recompute-modules", "moe_act"};
  const StepPlans group = plans_of(kExperts + recompute + offload({"fused_group_mlp"}));
  const StepPlans named = plans_of(kExperts + recompute + offload({"expert_fc1", "moe_act"}));
  EXPECT_EQ(moving(group).size(), 2u);
  EXPECT_EQ(moving(group), moving(named));
  EXPECT_EQ(group.train.live_bytes, named.train.live_bytes);
}

TEST(OffloadPlan, ExpertsRowsAreBoundedWhereRanksShareThemOut) {
  const auto slots = [](int ranks) {
    const Words shared = {"--expert-model-parallel-size", std::to_string(ranks)};
    return plans_of(kExperts + (ranks > 1 ? shared : Words{}) + offload({"fused_group_mlp"}), ranks).offload;
  };
  for (const OffloadSlot& slot : slots(1).points.slots) EXPECT_FALSE(slot.bounded) << slot.name;
  const OffloadChosen two = slots(2);
  std::size_t bytes = 0;
  for (const OffloadSlot& slot : two.points.slots) {
    bytes += slot.bytes;
    // The router's own tokens are all in use; arrived tokens and expert rows are not.
    EXPECT_EQ(slot.bounded, slot.name.find("router") == std::string::npos) << slot.name;
  }
  EXPECT_LT(two.used_bytes, static_cast<double>(bytes));
  EXPECT_GT(two.used_bytes, 0.5 * static_cast<double>(bytes));
}

TEST(OffloadPlan, FullRecomputationsInputsMove) {
  const Words full = {"--recompute-granularity", "full"};
  const StepPlans keeps = plans_of(full), plans = plans_of(full + offload({"layer_input"}));
  EXPECT_FALSE(moving(plans).empty());
  EXPECT_EQ(moving(plans).count("core_attn"), 0u);
  EXPECT_LT(plans.train.live_bytes, keeps.train.live_bytes);
}

// The output of tests/bench/offload_theory.py for a printed list; empty without Python.
std::string theory_of(const std::string& actions) {
  const TestFolder folder;
  const std::string list = folder.path("actions"), out = folder.path("theory");
  write_bytes(list, actions);
  const std::string command =
      fmt::format("python3 '{}/tests/bench/offload_theory.py' < '{}' > '{}'", MEGALITH_SOURCE_DIR, list, out);
  if (std::system("python3 --version > /dev/null 2>&1") != 0) return {};
  EXPECT_EQ(std::system(command.c_str()), 0);
  return read_bytes(out);
}

// dp 4 ep 4 pp 2 with 2 chunks of 2 layers a stage, dense ones and experts by turns.
const Words kSeedLayout =
    kExperts + words(
                   "--moe-layer-freq 2 --num-layers 8 --hidden-size 256 --seq-length 4096 --bf16 --micro-batch-size 1 "
                   "--global-batch-size 32 --expert-model-parallel-size 4 --pipeline-model-parallel-size 2 "
                   "--num-layers-per-virtual-pipeline-stage 2");

TEST(OffloadPlan, SavesNineAndFiveSlotsOfTenAndSixInFlight) {
  constexpr std::size_t kSlot = 4096 * 256 * 2;  // the norm's output, bf16
  const Words flags = plan_flags() + kSeedLayout + offload({"qkv_linear"}) + Words{"--offload-distance", "0"};
  const Options options = complete(flags, 8);
  const RunConfig config = run_config(options, 8);
  const std::size_t want[] = {9 * kSlot, 5 * kSlot};
  for (int stage = 0; stage < 2; ++stage) {
    SCOPED_TRACE(stage);
    const StepPlans plans = record_step(options, config, 4 * stage, {.max_microbatches = 1 << 14}).plans;
    const OffloadStats planned = planned_offload(plans);
    EXPECT_EQ(planned.saving_bytes, static_cast<std::int64_t>(want[stage]));
    EXPECT_GE(planned.ratio(), 0.98);
  }
  const std::string theory = theory_of(format_actions(options, config));
  if (theory.empty()) GTEST_SKIP() << "no python3";
  EXPECT_EQ(theory, fmt::format("stage 0: 10 slots in flight, 1 on the device, saves {} bytes\n"
                                "stage 1: 6 slots in flight, 1 on the device, saves {} bytes\n",
                                want[0], want[1]));
}

// Experts in all layers or in every other one, on eight ranks and, with dp 2 ep 2, on four. Each layer has three slots:
// the tokens that a rank sends, those that arrive, and the outputs of the gate and up projections.
TEST(OffloadPlan, SavesAllLayersOfExpertsInFlightButOne) {
  int number = 0;
  for (const auto& [replicas, every] : {std::pair(4, 1), {4, 2}, {2, 2}}) {
    for (const Words& fused : {Words{}, Words{"--use-transformer-engine-op-fuser", "--moe-grouped-gemm"}}) {
      if (number++ % one_of(3) != 0) continue;
      SCOPED_TRACE(fmt::format("dp {}, every {}, {} words for fusion", replicas, every, fused.size()));
      const Words shape = words(fmt::format(
          "--moe-layer-freq {} --expert-model-parallel-size {} --global-batch-size {}", every, replicas, 8 * replicas));
      const Words flags = plan_flags() + kSeedLayout + shape + fused + offload({"expert_fc1", "moe_act"}) +
                          Words{"--offload-distance", "0"};
      const Options options = complete(flags, 2 * replicas);
      const RunConfig config = run_config(options, 2 * replicas);
      std::string want;
      for (int stage = 0; stage < 2; ++stage) {
        const StepPlans plans = record_step(options, config, replicas * stage, {.max_microbatches = 1 << 14}).plans;
        const std::size_t in_flight = (stage == 0 ? 10u : 6u) / static_cast<unsigned>(every);  // layers
        std::size_t bytes = 0;                                                                 // in a layer's slots
        for (const OffloadSlot& slot : plans.offload.points.slots) bytes += slot.layer == 2 * stage ? slot.bytes : 0;
        const std::size_t saved = (in_flight - 1) * bytes;
        want +=
            fmt::format("stage {}: {} slots in flight, 3 on the device, saves {} bytes\n", stage, 3 * in_flight, saved);
        EXPECT_GE(static_cast<double>(planned_offload(plans).saved_bytes), 0.98 * static_cast<double>(saved)) << stage;
        EXPECT_GT(bytes, 0u);
      }
      if (const std::string theory = theory_of(format_actions(options, config)); !theory.empty()) {
        EXPECT_EQ(theory, want);
      }
    }
  }
}

// R of each stage: columns that a schedule leaves unused and gaps between slots do not use up the saving.
TEST(OffloadPlan, SavesWhatTheFullestMomentSavesOnEachStage) {
  const Words all = {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "fc1", "act"};
  const Words sharded = {"--data-parallel-sharding-strategy", "optim_grads_params"};
  const Words pipeline = {"--pipeline-model-parallel-size", "4", "--pipeline-schedule", "zb-v"};
  for (const auto& [layout, stages] : {std::pair(sharded, 1), {pipeline, 4}}) {
    const Words flags =
        layout + Words{"--num-layers", "16", "--hidden-size", "256", "--seq-length", "128"} + offload(all);
    for (int stage = 0; stage < stages; ++stage) {
      SCOPED_TRACE(testing::PrintToString(layout) + fmt::format(", stage {}", stage));
      const StepPlans plans = plans_of(flags, 4, stage);
      EXPECT_GE(planned_offload(plans).ratio(), 0.98);
      EXPECT_GT(planned_offload(plans).saving_bytes, 0);
      EXPECT_LE(static_cast<double>(plans.train.peak_bytes), 1.02 * static_cast<double>(plans.train.live_bytes));
    }
  }
}

// A stage of one layer: with gpipe, and on all stages but the last of 1f1b, other microbatches run in between.
TEST(OffloadPlan, OneLayersActivationsMoveDuringOtherMicrobatches) {
  const Words layers = {"--num-layers", "4", "--pipeline-model-parallel-size", "4", "--micro-batch-size", "1"};
  for (const auto& [schedule, stays] : {std::pair("1f1b", 3), {"gpipe", 4}}) {
    for (int stage = 0; stage < 4; ++stage) {
      SCOPED_TRACE(fmt::format("{}, stage {}", schedule, stage));
      const StepPlans plans = plans_of(layers + Words{"--pipeline-schedule", schedule} + offload({"act"}), 4, stage);
      EXPECT_EQ(moving(plans).count("act"), stage == stays ? 0u : 1u);
      EXPECT_EQ(format_offload(plans).find("needed again at once") != std::string::npos, stage == stays);
    }
  }
}

TEST(OffloadPlan, SaysWhyTheOthersStay) {
  const StepPlans plans = plans_of(offload({"act:0-2"}) + Words{"--offload-mb-per-layer", "1"});
  const std::string text = format_offload(plans);
  EXPECT_THAT(text, HasSubstr("kept activations per microbatch and rank\n"));
  EXPECT_THAT(text, HasSubstr("layers 0-2        moves"));
  EXPECT_THAT(text, HasSubstr("stays: not in --offload-modules"));
  EXPECT_THAT(text, HasSubstr("  of other kinds  "));
  EXPECT_THAT(text, HasSubstr("R = "));
  EXPECT_THAT(describe_offloading(plans), HasSubstr("act of layers 0-2; 3 slots"));
  EXPECT_THAT(describe_offloading(plans), Not(HasSubstr("forecast per microbatch")));  // without rates
}

TEST(OffloadPlan, TheListOfActionsBeginsWithTheTable) {
  const Options options = complete(plan_flags() + offload({"act:0-1"}), 1);
  const std::string text = format_actions(options, run_config(options, 1));
  EXPECT_THAT(text, ::testing::StartsWith("kept activations per microbatch and rank\n"));
  for (const char* const part : {"layers 0-1        moves", "saved, peak memory", "R = ", "host memory, pinned",
                                 "\nslot 0: chunk 0, layer 0 ", "offload chunk 0 microbatch 0 slot 0"})
    EXPECT_THAT(text, HasSubstr(part));
}

// Measurements of a step, with and without the driver's report.
TEST(OffloadPlan, MeasuredSavingIsByBlocksAndByTheDriver) {
  StepPlans plans;
  plans.offload.points.slots.resize(2);
  plans.offload.kept_live_bytes = 100 << 20;
  plans.offload.kept_peak_bytes = 110 << 20;
  plans.train.live_bytes = 60 << 20;
  plans.train.peak_bytes = 71 << 20;
  StepResult step{.seconds = 0.25};
  step.offload = {.bytes_out = 3 << 20,
                  .bytes_back = 3 << 20,
                  .timed = true,
                  .copy_out = 0.0125,
                  .copy_back = 0.01,
                  .wait_back = 0.001};
  const OffloadStats cpu = measured_offload(plans, step, std::nullopt);
  const std::string blocks =
      "2 slots, 3.00 MiB to the host in 12.50 ms and 3.00 back in 10.00, in a step of 250.00; compute waited 0.00 and "
      "1.00; saves 39.00 MiB for 40.00 MiB offloaded at peak memory (R = 0.9750)";
  EXPECT_EQ(describe_measured(cpu), blocks + ", n/a by the driver");
  const OffloadStats gpu = measured_offload(plans, step, std::size_t{72} << 20);
  EXPECT_EQ(describe_measured(gpu), blocks + ", 38.00 by the driver (R = 0.9500)");
  // Location of the host's memory, actual and expected.
  std::vector<OffloadStats> ranks(3, gpu);
  EXPECT_EQ(describe_misplaced(ranks), "");
  for (OffloadStats& rank : ranks) rank.nodes = {.first = 1, .last = 1};
  EXPECT_EQ(describe_misplaced(ranks), "");
  EXPECT_THAT(describe_measured(ranks[0]), testing::EndsWith("(R = 0.9500); the host's memory is on NUMA node 1"));
  for (OffloadStats& rank : ranks) rank.near_node = 1;
  EXPECT_EQ(describe_misplaced(ranks), "");
  ranks[1].nodes.last = 0;
  ranks[2].near_node = 0;
  EXPECT_EQ(describe_misplaced(ranks),
            "activations on the host of 2 ranks, first rank 1: expected memory of the GPU's NUMA node 1, got nodes 1 "
            "and 0; copies are slower; free memory of that node and run the process on its CPUs");
  // An evaluation uses more than the rest of the step.
  plans.evaluate.live_bytes = 70 << 20;
  plans.evaluate.peak_bytes = 80 << 20;
  EXPECT_EQ(planned_offload(plans).saving_bytes, 30 << 20);
  EXPECT_EQ(planned_offload(plans).saved_bytes, 30 << 20);
}

}  // namespace
}  // namespace megalith::test

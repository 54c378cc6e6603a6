// Lowering as data: every property is checked on the action lists themselves.
#include "parallel/pipeline_parallel/lowering.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/schedule.h"
#include "tests/support/matchers.h"
#include "tests/unit/parallel/schedule_support.h"

namespace megalith {
namespace {

// Calls visit(schedule, stage, actions) for stages 1 to 8 and microbatches 1 to 32 of schedules of one chunk.
template <class Visit>
void for_each_stage(Visit&& visit) {
  test::for_each_schedule([&](const Schedule& schedule) {
    if (schedule.placement.num_chunks > 1) return;
    for (int stage = 0; stage < schedule.placement.num_stages; ++stage)
      visit(schedule, stage, schedule.stages[static_cast<std::size_t>(stage)]);
  });
}

// Embedding, two layers of two segments, head: the tied embedding is segment 0.
constexpr int kSegments = 6;
const ChunkSegments kOneChunk{kSegments};
const ReducePoints kPoints{.segments_of_bucket = {{5}, {3, 4}, {0, 1, 2}}, .tied_segment = 0};

TEST(Lowering, ReducesEachBucketOnceAfterTheLastWeightGradientOfItsSegments) {
  for_each_stage([](const Schedule& schedule, int, const std::vector<Action>& stage) {
    const std::vector<Action> step = lower_training_step(stage, kOneChunk, kPoints);
    std::map<int, int> weights_left;  // key: segment
    for (int segment = 0; segment < kSegments; ++segment) weights_left[segment] = schedule.num_microbatches;
    std::map<int, int> reduced;
    int ties = 0;
    for (const Action& action : step) {
      if (action.kind == ActionKind::kBackwardWeight) --weights_left[action.segment];
      if (action.kind == ActionKind::kTieGradients) {
        ++ties;
        ASSERT_EQ(weights_left[0], 0);
        ASSERT_EQ(weights_left[5], 0) << "the tied use in the head comes first";
        ASSERT_EQ(reduced.count(2), 0u) << "reduced before the tied gradient was added";
      }
      if (action.kind != ActionKind::kReduce) continue;
      ++reduced[action.item];
      for (const int segment : kPoints.segments_of_bucket[static_cast<std::size_t>(action.item)])
        ASSERT_EQ(weights_left[segment], 0) << to_string(action);
    }
    ASSERT_EQ(ties, 1);
    ASSERT_EQ(reduced, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}}));
    ASSERT_EQ(weights_left[0], 0);
  });
}

TEST(Lowering, BucketsAreReducedWhileTheBackwardPassGoesOn) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 3);
  const std::vector<Action> step = lower_training_step(schedule.stages[0], kOneChunk, kPoints);
  const auto position = [&](ActionKind kind, int bucket) {
    return std::find_if(step.begin(), step.end(), [&](const Action& a) { return a.kind == kind && a.item == bucket; }) -
           step.begin();
  };
  const auto last_weight =
      std::find_if(step.rbegin(), step.rend(), [](const Action& a) { return a.kind == ActionKind::kBackwardWeight; })
          .base() -
      step.begin();
  EXPECT_LT(position(ActionKind::kReduce, 0), position(ActionKind::kReduce, 1));
  EXPECT_LT(position(ActionKind::kReduce, 1), position(ActionKind::kReduce, 2));
  EXPECT_LT(position(ActionKind::kReduce, 1), last_weight);
  EXPECT_GE(position(ActionKind::kReduce, 2), last_weight);
}

// Segment 1 sends returning gradients, and segment 0 waits for them ahead of its reads. The weight gradients of segment
// 2 run in between if both verbs are one block.
TEST(Lowering, WaitsForReturnsAfterWeightGradients) {
  const auto order_of = [](ScheduleKind kind, bool after_weights) {
    std::string order;
    const Schedule schedule = make_schedule(kind, kind == ScheduleKind::kZbH1 ? 2 : 1, 1, 2);
    const ReturnPoints returns{.segments = {1}, .after_weights = after_weights};
    for (const Action& action : lower_training_step(schedule.stages[0], {4}, {}, {}, returns)) {
      if (action.microbatch != 0) continue;
      if (action.kind == ActionKind::kBackwardData) order += fmt::format(" B{}", action.segment);
      if (action.kind == ActionKind::kBackwardWeight) order += fmt::format(" W{}", action.segment);
      if (action.kind == ActionKind::kWaitExchange) order += fmt::format(" R{}", action.item);
    }
    return order;
  };
  EXPECT_EQ(order_of(ScheduleKind::k1F1B, true), " B3 W3 B2 B1 W1 W2 R1 B0 W0");
  EXPECT_EQ(order_of(ScheduleKind::k1F1B, false), " B3 W3 B2 W2 B1 R1 W1 B0 W0");
  for (const bool after_weights : {true, false})
    EXPECT_EQ(order_of(ScheduleKind::kZbH1, after_weights), " B3 B2 B1 R1 B0 W3 W2 W1 W0");
}

// One graph holds the verbs around a wait, so a reduction starts after it.
TEST(Lowering, ReducesAfterTheWaitForReturns) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 1);
  std::vector<ActionKind> kinds;
  for (const Action& action : lower_training_step(schedule.stages[0], {3}, {.segments_of_bucket = {{2}, {0, 1}}}, {},
                                                  {.segments = {1}, .after_weights = true})) {
    if (action.kind >= ActionKind::kBackwardData && action.kind <= ActionKind::kReduce) kinds.push_back(action.kind);
  }
  using Kind = ActionKind;
  EXPECT_THAT(kinds, ElementsAre(Kind::kBackwardData, Kind::kBackwardData, Kind::kBackwardWeight, Kind::kBackwardWeight,
                                 Kind::kWaitExchange, Kind::kReduce, Kind::kBackwardData, Kind::kBackwardWeight,
                                 Kind::kReduce));
}

TEST(Lowering, AStepOfOneMicrobatchReadsAsWritten) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 1);
  std::vector<std::string> lines;
  for (const Action& action :
       lower_training_step(schedule.stages[0], {2}, {.segments_of_bucket = {{1}, {0}}, .tied_segment = 0}))
    lines.push_back(to_string(action));
  EXPECT_THAT(lines, ElementsAre("begin_step", "zero_gradients", "load chunk 0 microbatch 0",
                                 "forward chunk 0 microbatch 0 segment 0 column 0",
                                 "forward chunk 0 microbatch 0 segment 1 column 0",
                                 "backward_data chunk 0 microbatch 0 segment 1 column 0",
                                 "backward_weight chunk 0 microbatch 0 segment 1 column 0", "reduce bucket 0",
                                 "backward_data chunk 0 microbatch 0 segment 0 column 0",
                                 "backward_weight chunk 0 microbatch 0 segment 0 column 0", "tie_gradients",
                                 "reduce bucket 1", "finish_reduce", "reduce_sums", "reduce_norm", "optimizer_step"));
}

TEST(Lowering, ChunksHaveSegmentsOfTheirOwn) {
  const Schedule schedule = make_schedule(ScheduleKind::kZbV, 1, 2, 1);
  std::vector<std::string> lines;
  for (const Action& action : lower_training_step(schedule.stages[0], {1, 2}, {.segments_of_bucket = {{1, 2}, {0}}})) {
    if (action.kind != ActionKind::kForward && action.kind != ActionKind::kLoad) lines.push_back(to_string(action));
  }
  EXPECT_THAT(lines,
              ElementsAre("begin_step", "zero_gradients", "backward_data chunk 1 microbatch 0 segment 2 column 1",
                          "backward_data chunk 1 microbatch 0 segment 1 column 1",
                          "backward_weight chunk 1 microbatch 0 segment 2 column 1",
                          "backward_weight chunk 1 microbatch 0 segment 1 column 1", "reduce bucket 0",
                          "backward_data chunk 0 microbatch 0 segment 0 column 0",
                          "backward_weight chunk 0 microbatch 0 segment 0 column 0", "reduce bucket 1", "finish_reduce",
                          "reduce_sums", "reduce_norm", "optimizer_step"));
}

TEST(Lowering, EveryScheduleLowersWithAnyNumberOfSegments) {
  test::for_each_schedule([](const Schedule& schedule) {
    if (schedule.num_microbatches > 12) return;
    ChunkSegments segments;
    for (int chunk = 0; chunk < schedule.placement.num_chunks; ++chunk) segments.push_back(1 + chunk % 3);
    const int total = first_segment(segments, schedule.placement.num_chunks);
    for (const std::vector<Action>& stage : schedule.stages) {
      std::map<int, int> weights;  // key: segment
      for (const Action& action : lower_training_step(stage, segments, {})) {
        EXPECT_FALSE(action.with_next);
        if (action.kind == ActionKind::kBackwardWeight) ++weights[action.segment];
      }
      ASSERT_EQ(weights.size(), static_cast<std::size_t>(total));
      for (const auto& [segment, times] : weights) ASSERT_EQ(times, schedule.num_microbatches) << segment;
    }
  });
}

TEST(Lowering, EvaluationIsForwardAlone) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 3);
  const std::vector<Action> step = lower_evaluation_step(schedule.stages[0], kOneChunk);
  EXPECT_EQ(num_columns(step), 1);
  ASSERT_EQ(step.size(), 3u * (kSegments + 1) + 2);
  EXPECT_EQ(step.front().kind, ActionKind::kBeginStep);
  EXPECT_EQ(step.back().kind, ActionKind::kReduceSums);
  for (std::size_t i = 1; i + 1 < step.size(); ++i) {
    const bool load = (i - 1) % (kSegments + 1) == 0;
    EXPECT_EQ(step[i].kind, load ? ActionKind::kLoad : ActionKind::kForward);
    EXPECT_EQ(step[i].microbatch, static_cast<int>((i - 1) / (kSegments + 1)));
  }
}

TEST(Lowering, DelayedWeightGradientsKeepTheirColumn) {
  std::vector<Action> stage = make_schedule(ScheduleKind::k1F1B, 1, 1, 3).stages[0];
  std::stable_partition(stage.begin(), stage.end(),
                        [](const Action& a) { return a.kind != ActionKind::kBackwardWeight; });
  const std::vector<Action> step = lower_training_step(stage, kOneChunk, kPoints);
  EXPECT_EQ(num_columns(step), 3);
  for (const Action& action : step) {
    if (action.kind >= ActionKind::kLoad && action.kind <= ActionKind::kBackwardWeight) {
      EXPECT_EQ(action.column, action.microbatch);
    }
  }
}

TEST(Lowering, WeightsAreDelayedUntilTheGradientHasLeft) {
  const Schedule schedule = delay_weights(make_schedule(ScheduleKind::k1F1B, 2, 1, 1));
  std::vector<std::string> lines;
  for (const Action& action :
       lower_training_step(insert_messages(schedule, 1), {2}, {.segments_of_bucket = {{0, 1}}})) {
    if (is_of_microbatch(action.kind) && action.kind != ActionKind::kLoad) lines.push_back(to_string(action));
  }
  EXPECT_THAT(lines, ElementsAre("post_receive chunk 0 microbatch 0 output from stage 0",
                                 "wait_receive chunk 0 microbatch 0 output from stage 0",
                                 "forward chunk 0 microbatch 0 segment 0 column 0",
                                 "forward chunk 0 microbatch 0 segment 1 column 0",
                                 "backward_data chunk 0 microbatch 0 segment 1 column 0",
                                 "backward_data chunk 0 microbatch 0 segment 0 column 0",
                                 "send chunk 0 microbatch 0 gradient to stage 0",
                                 "backward_weight chunk 0 microbatch 0 segment 1 column 0",
                                 "backward_weight chunk 0 microbatch 0 segment 0 column 0",
                                 "wait_send chunk 0 microbatch 0 gradient to stage 0"));
}

// Buckets 2, 1, 0 hold segments 0-2, 3-4, 5: the order of their use in forward.
TEST(Lowering, WeightsAreGatheredInTheOrderOfTheirUseAndWaitedForThere) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 2, 1, 2);
  const GatherPoints gathers{.segments_of_bucket = kPoints.segments_of_bucket, .overlap = true};
  const auto check_waits = [](const std::vector<Action>& step) {
    std::vector<int> waited;
    for (std::size_t i = 0; i < step.size(); ++i) {
      if (step[i].kind != ActionKind::kWaitParameters) continue;
      waited.push_back(step[i].item);
      EXPECT_EQ(step[i + 1].kind, ActionKind::kForward);
      EXPECT_EQ(step[i + 1].microbatch, 0);
      EXPECT_EQ(step[i + 1].segment, step[i].item == 2 ? 0 : step[i].item == 1 ? 3 : 5);
    }
    EXPECT_THAT(waited, ElementsAre(2, 1, 0));
  };
  const std::vector<Action> step = lower_training_step(schedule.stages[0], kOneChunk, kPoints, gathers);
  check_waits(step);
  check_waits(lower_evaluation_step(schedule.stages[0], kOneChunk, gathers));
  ASSERT_GT(step.size(), 4u);
  EXPECT_EQ((step.end() - 4)->kind, ActionKind::kOptimizerStep);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ((step.end() - 3 + i)->kind, ActionKind::kGatherParameters);
    EXPECT_EQ((step.end() - 3 + i)->item, 2 - i);
  }
}

TEST(Lowering, WithoutOverlapAStepEndsWhenAllWeightsAreGathered) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, 2);
  const GatherPoints gathers{.segments_of_bucket = kPoints.segments_of_bucket};
  const std::vector<Action> step = lower_training_step(schedule.stages[0], kOneChunk, kPoints, gathers);
  EXPECT_EQ(step.back().kind, ActionKind::kWaitParameters);
  EXPECT_EQ(step.back().item, 0);  // the last one
  EXPECT_EQ(std::count_if(step.begin(), step.end(), [](const Action& a) { return is_of_bucket(a.kind); }), 3 + 3 + 1);
  EXPECT_EQ(lower_evaluation_step(schedule.stages[0], kOneChunk, gathers),
            lower_evaluation_step(schedule.stages[0], kOneChunk));
  // A bucket that no forward reads is waited for first.
  const GatherPoints unread{.segments_of_bucket = {{}}, .overlap = true};
  EXPECT_EQ(lower_training_step(schedule.stages[0], kOneChunk, kPoints, unread).front(),
            (Action{.kind = ActionKind::kWaitParameters, .item = 0}));
}

}  // namespace
}  // namespace megalith

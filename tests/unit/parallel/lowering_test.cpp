// Lowering as data: every property is checked on the action lists themselves.
#include "parallel/pipeline_parallel/lowering.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/schedule.h"
#include "tests/unit/parallel/schedule_support.h"

namespace megalith {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

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
    std::map<int, int> weights_left;  // by segment
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

// Weights of segment 2 come behind both gradients of segment 1, where both are one block.
TEST(Lowering, WeightGradientsStandBesideWhatIsOnItsWay) {
  const auto order_of = [](ScheduleKind kind) {
    std::string order;
    const Schedule schedule = make_schedule(kind, kind == ScheduleKind::kZbH1 ? 2 : 1, 1, 2);
    for (const Action& action : lower_training_step(schedule.stages[0], {4}, {}, {}, {2})) {
      if (action.microbatch != 0) continue;
      if (action.kind == ActionKind::kBackwardData) order += fmt::format(" B{}", action.segment);
      if (action.kind == ActionKind::kBackwardWeight) order += fmt::format(" W{}", action.segment);
    }
    return order;
  };
  EXPECT_EQ(order_of(ScheduleKind::k1F1B), " B3 W3 B2 B1 W1 W2 B0 W0");
  EXPECT_EQ(order_of(ScheduleKind::kZbH1), " B3 B2 B1 B0 W3 W2 W1 W0");
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
      std::map<int, int> weights;  // by segment
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

// Buckets 2, 1, 0 hold segments 0-2, 3-4, 5: the order in which forward comes to them.
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

// verify() on damaged lists. The step of two microbatches is small enough to damage it at every place.
class Verify : public testing::Test {
 protected:
  const std::vector<Action> step_ =
      lower_training_step(make_schedule(ScheduleKind::k1F1B, 2, 1, 2).stages[0], kOneChunk, kPoints);

  static bool is_verb(const Action& a) {
    return a.kind >= ActionKind::kForward && a.kind <= ActionKind::kBackwardWeight;
  }
  static bool accepted(const std::vector<Action>& step) {
    try {
      verify(step, kOneChunk, kPoints);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInternal);
      EXPECT_THAT(error.what(), HasSubstr("action list"));
      return false;
    }
  }
};

TEST_F(Verify, AcceptsWhatLoweringMakes) { EXPECT_TRUE(accepted(step_)); }

TEST_F(Verify, FindsEveryActionThatIsMissing) {
  for (std::size_t i = 0; i < step_.size(); ++i) {
    std::vector<Action> damaged = step_;
    damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(accepted(damaged)) << to_string(step_[i]);
  }
}

TEST_F(Verify, FindsEveryActionThatStandsTwice) {
  for (std::size_t i = 0; i < step_.size(); ++i) {
    std::vector<Action> damaged = step_;
    damaged.insert(damaged.begin() + static_cast<std::ptrdiff_t>(i), step_[i]);
    EXPECT_FALSE(accepted(damaged)) << to_string(step_[i]);
  }
}

// The order that dependencies demand: whether a may stand after b.
bool depends(const Action& later, const Action& earlier) {
  const bool same = later.microbatch == earlier.microbatch;
  switch (later.kind) {
    case ActionKind::kForward:
      return same && (earlier.kind == ActionKind::kLoad ||
                      (earlier.kind == ActionKind::kForward && earlier.segment < later.segment));
    case ActionKind::kBackwardData:
      return same && (earlier.kind == ActionKind::kLoad || earlier.kind == ActionKind::kForward ||
                      (earlier.kind == ActionKind::kBackwardData && earlier.segment > later.segment));
    case ActionKind::kBackwardWeight:
      // The first touches the gradients that zero_gradients clears; of one segment they ascend in microbatches.
      return (same && earlier.kind == ActionKind::kBackwardData && earlier.segment >= later.segment) ||
             (earlier.kind == ActionKind::kBackwardWeight && earlier.segment == later.segment && !same);
    default: return false;
  }
}

TEST_F(Verify, FindsEveryPairOfVerbsThatChangedPlacesAgainstADependency) {
  int found = 0;
  for (std::size_t i = 0; i < step_.size(); ++i) {
    for (std::size_t j = i + 1; j < step_.size(); ++j) {
      if (!is_verb(step_[j]) || !depends(step_[j], step_[i])) continue;
      std::vector<Action> damaged = step_;
      std::swap(damaged[i], damaged[j]);
      EXPECT_FALSE(accepted(damaged)) << to_string(step_[i]) << " and " << to_string(step_[j]);
      ++found;
    }
  }
  EXPECT_GT(found, 100);
}

TEST_F(Verify, FindsAReductionThatComesTooEarly) {
  for (std::size_t i = 0; i < step_.size(); ++i) {
    if (step_[i].kind != ActionKind::kReduce && step_[i].kind != ActionKind::kTieGradients) continue;
    // Before the last backward_weight that it waits for.
    std::size_t last = i;
    while (step_[last].kind != ActionKind::kBackwardWeight) --last;
    std::vector<Action> damaged = step_;
    std::rotate(damaged.begin() + static_cast<std::ptrdiff_t>(last), damaged.begin() + static_cast<std::ptrdiff_t>(i),
                damaged.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    EXPECT_FALSE(accepted(damaged)) << to_string(step_[i]);
  }
}

TEST_F(Verify, FindsADelayedWeightGradientBehindItsReduction) {
  std::vector<Action> damaged =
      lower_training_step(delay_weights(make_schedule(ScheduleKind::k1F1B, 2, 1, 2)).stages[0], kOneChunk, kPoints);
  const auto weight =
      std::find(damaged.begin(), damaged.end(),
                Action{.kind = ActionKind::kBackwardWeight, .microbatch = 1, .segment = 5, .column = 1});
  const auto reduce = std::find(damaged.begin(), damaged.end(), Action{.kind = ActionKind::kReduce, .item = 0});
  ASSERT_LT(weight - damaged.begin(), reduce - damaged.begin());
  std::rotate(weight, weight + 1, reduce + 1);
  try {
    verify(damaged, kOneChunk, kPoints);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_THAT(error.what(), HasSubstr("action list: reduce bucket 0 needs before it: backward_weight chunk 0 "
                                        "microbatch 1 segment 5 column 1"));
  }
}

TEST_F(Verify, FindsAReductionThatComesTooEarlyWhereASegmentLiesInSeveralBuckets) {
  const ReducePoints points{.segments_of_bucket = {{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}};
  const std::vector<Action> step =
      lower_training_step(make_schedule(ScheduleKind::k1F1B, 1, 1, 1).stages[0], kOneChunk, points);
  int found = 0;
  for (std::size_t i = 1; i < step.size(); ++i) {
    if (step[i].kind != ActionKind::kReduce) continue;
    std::vector<Action> damaged = step;
    const auto last = std::find_if(damaged.begin(), damaged.end(),
                                   [](const Action& a) { return a.kind == ActionKind::kBackwardWeight; });
    std::rotate(last, damaged.begin() + static_cast<std::ptrdiff_t>(i),
                damaged.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    EXPECT_THROW(verify(damaged, kOneChunk, points), Error) << to_string(step[i]);
    ++found;
  }
  EXPECT_EQ(found, 2);
}

TEST_F(Verify, FindsWeightsThatAreNotGathered) {
  for (const bool overlap : {false, true}) {
    const GatherPoints gathers{.segments_of_bucket = kPoints.segments_of_bucket, .overlap = overlap};
    const std::vector<Action> step = insert_gathers(step_, gathers);
    const auto accepts = [&](const std::vector<Action>& damaged) {
      try {
        verify(damaged, kOneChunk, kPoints, gathers);
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    EXPECT_TRUE(accepts(step));
    for (std::size_t i = 0; i < step.size(); ++i) {
      if (step[i].kind < ActionKind::kGatherParameters) continue;
      std::vector<Action> damaged = step;
      damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(accepts(damaged)) << to_string(step[i]) << " is missing";
      damaged.insert(damaged.begin(), step[i]);
      const bool wait = step[i].kind == ActionKind::kWaitParameters;
      EXPECT_EQ(accepts(damaged), wait && overlap) << to_string(step[i]) << " comes first";
      damaged = step;
      damaged.push_back(step[i]);
      EXPECT_FALSE(accepts(damaged)) << to_string(step[i]) << " stands twice";
      damaged = step;
      damaged[i].item = 3;
      EXPECT_FALSE(accepts(damaged)) << to_string(step[i]) << " of no bucket";
      if (!wait || !overlap) continue;
      std::swap(damaged[i] = step[i], damaged[i + 1]);
      EXPECT_FALSE(accepts(damaged)) << to_string(step[i]) << " comes late";
    }
  }
}

TEST_F(Verify, FindsAMicrobatchInTheColumnOfAnother) {
  std::vector<Action> damaged = step_;
  for (Action& action : damaged) action.column = 0;  // two are in flight
  EXPECT_FALSE(accepted(damaged));
  for (std::size_t i = 0; i < step_.size(); ++i) {
    if (!is_verb(step_[i])) continue;
    damaged = step_;
    damaged[i].column = 1 - damaged[i].column;
    EXPECT_FALSE(accepted(damaged)) << to_string(step_[i]);
  }
}

}  // namespace
}  // namespace megalith

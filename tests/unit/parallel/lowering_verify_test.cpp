// Problems that verify() finds in damaged action lists.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/schedule.h"
#include "tests/support/error_of.h"
#include "tests/support/matchers.h"
#include "tests/unit/parallel/schedule_support.h"

namespace megalith {
namespace {

// Embedding, two layers of two segments, head: the tied embedding is segment 0.
const ChunkSegments kSixSegments{6};
const ReducePoints kThreeBuckets{.segments_of_bucket = {{5}, {3, 4}, {0, 1, 2}}, .tied_segment = 0};

// verify() on damaged lists. The step of two microbatches is small enough to damage it at every place.
class Verify : public testing::Test {
 protected:
  const std::vector<Action> step_ =
      lower_training_step(make_schedule(ScheduleKind::k1F1B, 2, 1, 2).stages[0], kSixSegments, kThreeBuckets);

  static bool is_verb(const Action& a) {
    return a.kind >= ActionKind::kForward && a.kind <= ActionKind::kBackwardWeight;
  }
  static bool accepted(const std::vector<Action>& step) {
    try {
      verify(step, kSixSegments, kThreeBuckets);
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

// The order that dependencies require: whether `later` must follow `earlier`.
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
      // The first touches the gradients that zero_gradients clears; in one segment they ascend in microbatches.
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
    // Moves the reduction ahead of the last backward_weight that it waits for.
    std::size_t last = i;
    while (step_[last].kind != ActionKind::kBackwardWeight) --last;
    std::vector<Action> damaged = step_;
    std::rotate(damaged.begin() + static_cast<std::ptrdiff_t>(last), damaged.begin() + static_cast<std::ptrdiff_t>(i),
                damaged.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    EXPECT_FALSE(accepted(damaged)) << to_string(step_[i]);
  }
}

TEST_F(Verify, FindsADelayedWeightGradientAfterItsReduction) {
  std::vector<Action> damaged = lower_training_step(
      delay_weights(make_schedule(ScheduleKind::k1F1B, 2, 1, 2)).stages[0], kSixSegments, kThreeBuckets);
  const auto weight =
      std::find(damaged.begin(), damaged.end(),
                Action{.kind = ActionKind::kBackwardWeight, .microbatch = 1, .segment = 5, .column = 1});
  const auto reduce = std::find(damaged.begin(), damaged.end(), Action{.kind = ActionKind::kReduce, .item = 0});
  ASSERT_LT(weight - damaged.begin(), reduce - damaged.begin());
  std::rotate(weight, weight + 1, reduce + 1);
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { verify(damaged, kSixSegments, kThreeBuckets); }),
              HasSubstr("action list: reduce bucket 0 needs before it: backward_weight chunk 0 "
                        "microbatch 1 segment 5 column 1"));
}

TEST_F(Verify, FindsReturnsThatAreReadBeforeTheirWait) {
  for (const bool after_weights : {false, true}) {
    const ReturnPoints returns{.segments = {3}, .after_weights = after_weights};
    const std::vector<Action> step = lower_training_step(make_schedule(ScheduleKind::k1F1B, 1, 1, 2).stages[0],
                                                         kSixSegments, kThreeBuckets, {}, returns);
    const auto accepts = [&](const std::vector<Action>& damaged, const ReturnPoints& of) {
      try {
        verify(damaged, kSixSegments, kThreeBuckets, {}, of);
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    EXPECT_TRUE(accepts(step, returns));
    EXPECT_FALSE(accepts(step, {}));  // no segment sends returns
    int waits = 0;
    for (std::size_t i = 0; i < step.size(); ++i) {
      if (step[i].kind != ActionKind::kWaitExchange) continue;
      ++waits;
      std::vector<Action> damaged = step;
      damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(accepts(damaged, returns));
      for (const auto& [kind, segment] : {std::pair(ActionKind::kBackwardData, 3), {ActionKind::kBackwardData, 2}}) {
        Action verb = step[i];
        verb.kind = kind, verb.segment = segment, verb.item = -1, verb.gradient = false;
        const auto at = std::find(damaged.begin(), damaged.end(), verb);
        ASSERT_NE(at, damaged.end());
        std::vector<Action> moved = damaged;  // ahead of the verb that leaves, or after the one that reads
        moved.insert(moved.begin() + (at - damaged.begin()) + (segment == 2 ? 1 : 0), step[i]);
        EXPECT_FALSE(accepts(moved, returns)) << to_string(verb);
      }
    }
    EXPECT_EQ(waits, 2);
  }
}

TEST_F(Verify, FindsAReductionThatComesTooEarlyWhereASegmentLiesInSeveralBuckets) {
  const ReducePoints points{.segments_of_bucket = {{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}};
  const std::vector<Action> step =
      lower_training_step(make_schedule(ScheduleKind::k1F1B, 1, 1, 1).stages[0], kSixSegments, points);
  int found = 0;
  for (std::size_t i = 1; i < step.size(); ++i) {
    if (step[i].kind != ActionKind::kReduce) continue;
    std::vector<Action> damaged = step;
    const auto last = std::find_if(damaged.begin(), damaged.end(),
                                   [](const Action& a) { return a.kind == ActionKind::kBackwardWeight; });
    std::rotate(last, damaged.begin() + static_cast<std::ptrdiff_t>(i),
                damaged.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    EXPECT_THROW(verify(damaged, kSixSegments, points), Error) << to_string(step[i]);
    ++found;
  }
  EXPECT_EQ(found, 2);
}

TEST_F(Verify, FindsWeightsThatAreNotGathered) {
  for (const bool overlap : {false, true}) {
    const GatherPoints gathers{.segments_of_bucket = kThreeBuckets.segments_of_bucket, .overlap = overlap};
    const std::vector<Action> step = insert_gathers(step_, gathers);
    const auto accepts = [&](const std::vector<Action>& damaged) {
      try {
        verify(damaged, kSixSegments, kThreeBuckets, gathers);
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

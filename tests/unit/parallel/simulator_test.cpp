// The simulator against hand-made cases, and schedules that are damaged on purpose.
#include "parallel/pipeline_parallel/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/lowering.h"

namespace megalith {
namespace {

using enum ActionKind;
using testing::Eq;

TEST(Simulator, PlaysOneMicrobatchThroughTwoStages) {
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 2, 1, 1);
  const Simulation played =
      simulate(schedule, {.parts = {{.forward = 2, .backward_data = 3, .backward_weight = 4, .transfer = 0.5}}});
  const auto expect = [&](std::size_t stage, std::size_t action, double start, double end) {
    EXPECT_EQ(played.stages[stage].actions[action].start, start);
    EXPECT_EQ(played.stages[stage].actions[action].end, end);
  };
  expect(0, 0, 0, 2);
  expect(1, 0, 2.5, 4.5);
  expect(1, 1, 4.5, 7.5);
  expect(1, 2, 7.5, 11.5);
  expect(0, 1, 12, 15);  // backward is one block: its gradient leaves after W
  expect(0, 2, 15, 19);
  EXPECT_EQ(played.makespan, 19);
  EXPECT_EQ(played.bubble(), 10);
  EXPECT_EQ(played.bubble_share(), 1 - 18.0 / 38);
  EXPECT_EQ(played.stages[0].busy, 9);
  EXPECT_EQ(played.stages[0].idle_inside(), 10);
  EXPECT_EQ(played.stages[1].idle_inside(), 0);

  // The same with split W: the gradient leaves ahead of it.
  EXPECT_EQ(simulate(make_schedule(ScheduleKind::kZbH1, 2, 1, 1),
                     {.parts = {{.forward = 2, .backward_data = 3, .backward_weight = 4, .transfer = 0.5}}})
                .makespan,
            8 + 3 + 4);
}

TEST(Simulator, EachPartHasItsOwnDurations) {
  const Schedule schedule = make_schedule(ScheduleKind::kGpipe, 3, 1, 1);
  SimulationSpec spec{.parts = {{.forward = 1}, {.forward = 10}, {.forward = 100}}};
  spec.parts[0].transfer = 1000;  // out and back after the first part
  const Simulation played = simulate(schedule, spec);
  EXPECT_EQ(played.stages[1].actions[0].start, 1001);
  EXPECT_EQ(played.stages[2].actions[0].start, 1011);
  EXPECT_EQ(played.stages[0].actions[1].start, 1111 + 2 + 2 + 1000);
  spec.parts.pop_back();
  EXPECT_THROW(simulate(schedule, spec), Error);
}

// A channel carries one message at a time, in the order in which they were sent.
TEST(Simulator, MessagesOfAChannelFollowEachOther) {
  const Schedule schedule = make_schedule(ScheduleKind::kGpipe, 2, 1, 3);
  const Simulation played = simulate(schedule, {.parts = {{.transfer = 4}}});
  EXPECT_EQ(played.stages[1].actions[0].start, 5);
  EXPECT_EQ(played.stages[1].actions[1].start, 9);
  EXPECT_EQ(played.stages[1].actions[2].start, 13);
  EXPECT_EQ(played.stages[0].actions[2].end, 3);  // the sender continues at once
  const Simulation blocking = simulate(schedule, {.parts = {{.transfer = 4}}, .blocking_sends = true});
  EXPECT_EQ(blocking.stages[0].actions[2].start, 10);  // or waits
}

// Posted in the order of sending, even if the order of use differs.
TEST(Simulator, ReceivesOfAChannelStandInTheOrderOfItsMessages) {
  const Schedule schedule = make_schedule(ScheduleKind::kZbV, 3, 2, 8);
  const std::vector<Message> messages = messages_of(schedule, 0);
  EXPECT_EQ(messages.size(), 2u * 4 * 8);  // four boundaries between stages, in both directions
  int reordered = 0;
  for (std::size_t i = 0; i + 1 < messages.size(); ++i) {
    const Message &a = messages[i], &b = messages[i + 1];
    EXPECT_LE(a.posted, a.used);
    if (a.from != b.from || a.to != b.to) continue;
    EXPECT_LT(a.sent, b.sent);
    EXPECT_LE(a.posted, b.posted);
    reordered += a.used > b.used;
  }
  EXPECT_GT(reordered, 0);
}

TEST(Simulator, NamesTheActionsThatAreBlocked) {
  Schedule schedule = make_schedule(ScheduleKind::k1F1B, 2, 1, 2);
  EXPECT_EQ(simulate(schedule, {}).deadlock, "");
  // Stage 1 requires microbatch 1 first; stage 0 sends it only once it has microbatch 0's gradient.
  std::rotate(schedule.stages[1].begin(), schedule.stages[1].begin() + 3, schedule.stages[1].end());  // F1 B1 W1 F0 ...
  const auto second = schedule.stages[0].begin() + 1;
  std::rotate(second, second + 1, second + 3);  // F0 B0 W0 F1 ...
  const Simulation stuck = simulate(schedule, {});
  EXPECT_THAT(
      stuck.deadlock,
      Eq("stage 0 at backward_data chunk 0 microbatch 0 waits for backward_data chunk 0 microbatch 0 of stage 1; "
         "stage 1 at forward chunk 0 microbatch 1 waits for forward chunk 0 microbatch 1 of stage 0"));
  EXPECT_EQ(stuck.stages[1].actions.size(), 0u);
}

TEST(Simulator, FindsWhatJustInTimeBlockingCallsWouldDo) {
  const Schedule schedule = make_schedule(ScheduleKind::kInterleaved, 2, 2, 4);
  EXPECT_EQ(simulate(schedule, {.blocking_sends = true, .receive_ahead = 1}).deadlock, "");
  EXPECT_THAT(simulate(schedule, {.blocking_sends = true, .receive_ahead = 0}).deadlock,
              Eq("stage 0 after backward_data chunk 1 microbatch 0 waits for stage 1 to receive it; stage 1 after "
                 "backward_data chunk 1 microbatch 1 waits for stage 0 to receive it"));
}

// verify(Schedule) finds every action that is missing, doubled, or ahead of its inputs.
class VerifySchedule : public testing::TestWithParam<ScheduleKind> {
 protected:
  const Schedule schedule_ =
      make_schedule(GetParam(), 2, is_v_shaped(GetParam()) || GetParam() == ScheduleKind::kInterleaved ? 2 : 1, 4);

  static bool is_accepted(const Schedule& schedule) {
    try {
      verify(schedule);
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInternal);
      return false;
    }
  }
};

TEST_P(VerifySchedule, FindsMissingAndDoubledActions) {
  EXPECT_TRUE(is_accepted(schedule_));
  for (std::size_t stage = 0; stage < 2; ++stage) {
    for (std::size_t i = 0; i < schedule_.stages[stage].size(); ++i) {
      Schedule damaged = schedule_;
      std::vector<Action>& actions = damaged.stages[stage];
      actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(is_accepted(damaged)) << "stage " << stage << " without action " << i;
      actions.push_back(actions.front());
      EXPECT_FALSE(is_accepted(damaged)) << "stage " << stage << " with two firsts and without action " << i;
    }
  }
}

TEST_P(VerifySchedule, FindsVerbsOfAMicrobatchThatChangedPlaces) {
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const std::vector<Action>& actions = schedule_.stages[stage];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      for (std::size_t j = i + 1; j < actions.size(); ++j) {
        const bool same = actions[i].chunk == actions[j].chunk && actions[i].microbatch == actions[j].microbatch;
        if (!same) continue;
        Schedule damaged = schedule_;
        std::swap(damaged.stages[stage][i], damaged.stages[stage][j]);
        EXPECT_FALSE(is_accepted(damaged)) << to_string(actions[i]) << " and " << to_string(actions[j]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, VerifySchedule,
                         testing::Values(ScheduleKind::kGpipe, ScheduleKind::k1F1B, ScheduleKind::kInterleaved,
                                         ScheduleKind::kZbH1, ScheduleKind::kZbV, ScheduleKind::kDualPipeV),
                         [](const auto& test) {
                           std::string name(name_of(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace megalith

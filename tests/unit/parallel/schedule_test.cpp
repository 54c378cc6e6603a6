// Properties of every schedule over all legal combinations of stages, chunks and microbatches.
#include "parallel/pipeline_parallel/schedule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/simulator.h"
#include "tests/support/matchers.h"
#include "tests/unit/parallel/published.h"
#include "tests/unit/parallel/schedule_support.h"

namespace megalith {
namespace {

using enum ActionKind;

// "F0.1": chunk 0 or 1 after the dot if there are two; B+W: one block.
std::string written(const Schedule& schedule, int stage) {
  std::string text;
  for (const Action& a : schedule.stages[static_cast<std::size_t>(stage)]) {
    text += fmt::format("{}{}", a.kind == kForward ? "F" : a.kind == kBackwardData ? "B" : "W", a.microbatch);
    if (schedule.placement.num_chunks > 1) text += fmt::format(".{}", a.chunk);
    text += a.with_next ? "+" : " ";
  }
  text.pop_back();
  return text;
}

TEST(Schedules, RunEachVerbOnceAndAscendInMicrobatchesPerChunk) {
  const int visited = test::for_each_schedule([](const Schedule& schedule) {
    const Placement& placement = schedule.placement;
    ASSERT_EQ(schedule.stages.size(), static_cast<std::size_t>(placement.num_stages));
    for (const std::vector<Action>& actions : schedule.stages) {
      ASSERT_EQ(actions.size(), static_cast<std::size_t>(3 * placement.num_chunks * schedule.num_microbatches));
      std::map<std::pair<ActionKind, int>, int> next;  // (verb, chunk)
      for (const Action& a : actions) {
        ASSERT_TRUE(a.kind == kForward || a.kind == kBackwardData || a.kind == kBackwardWeight);
        ASSERT_TRUE(a.chunk >= 0 && a.chunk < placement.num_chunks);
        ASSERT_EQ(a.microbatch, (next[{a.kind, a.chunk}]++)) << to_string(a);
        ASSERT_LE((next[{kBackwardData, a.chunk}]), (next[{kForward, a.chunk}])) << to_string(a);
        ASSERT_LE((next[{kBackwardWeight, a.chunk}]), (next[{kBackwardData, a.chunk}])) << to_string(a);
      }
    }
    verify(schedule);
  });
  EXPECT_EQ(visited, test::kNumLegal);
}

// No verb begins until the verbs that it needs have ended and their output has arrived. Checks times only.
void expect_dependencies_kept(const Schedule& schedule, const Simulation& played, double transfer) {
  const Placement& placement = schedule.placement;
  std::map<std::tuple<ActionKind, int, int>, std::pair<double, int>> end;  // (verb, part, microbatch): time, stage
  for (int stage = 0; stage < placement.num_stages; ++stage) {
    const std::vector<Action>& actions = schedule.stages[static_cast<std::size_t>(stage)];
    const Simulation::Stage& times = played.stages[static_cast<std::size_t>(stage)];
    ASSERT_EQ(times.actions.size(), actions.size());
    for (std::size_t i = 0; i < actions.size(); ++i) {
      ASSERT_GE(times.actions[i].start, i == 0 ? 0 : times.actions[i - 1].end);
      const int part = placement.part({.stage = stage, .chunk = actions[i].chunk});
      end[{actions[i].kind, part, actions[i].microbatch}] = {times.actions[i].end, stage};
    }
  }
  for (int stage = 0; stage < placement.num_stages; ++stage) {
    const std::vector<Action>& actions = schedule.stages[static_cast<std::size_t>(stage)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const Action& a = actions[i];
      const int part = placement.part({.stage = stage, .chunk = a.chunk});
      const auto needs = [&](ActionKind verb, int needed) {
        if (needed < 0 || needed == placement.num_parts()) return;
        const auto [time, at] = end.at({verb, needed, a.microbatch});
        const double start = played.stages[static_cast<std::size_t>(stage)].actions[i].start;
        ASSERT_GE(start, time + (at == stage ? 0 : transfer)) << to_string(a) << " of stage " << stage;
      };
      if (a.kind == kForward) needs(kForward, part - 1);
      if (a.kind == kBackwardData) needs(kForward, part);
      if (a.kind == kBackwardData) needs(kBackwardData, part + 1);
      if (a.kind == kBackwardWeight) needs(kBackwardData, part);
    }
  }
}

TEST(Schedules, KeepDependenciesAndNeverWaitInACircle) {
  test::for_each_schedule([](const Schedule& schedule) {
    for (const bool blocking : {false, true}) {
      const Simulation played = simulate(schedule, {.parts = {{.transfer = 0.5}}, .blocking_sends = blocking});
      ASSERT_EQ(played.deadlock, "");
      expect_dependencies_kept(schedule, played, 0.5);
    }
    // Receives that are posted just in time are enough where senders do not wait.
    ASSERT_EQ(simulate(schedule, {.receive_ahead = 0}).deadlock, "");
  });
}

TEST(Schedules, KeepNoMoreStashesThanPublished) {
  std::map<ScheduleKind, int> reached;
  test::for_each_schedule([&](const Schedule& schedule) {
    const Simulation played = simulate(schedule, {});
    for (int stage = 0; stage < schedule.placement.num_stages; ++stage) {
      const std::vector<Action>& actions = schedule.stages[static_cast<std::size_t>(stage)];
      int in_flight = 0, most = 0;
      for (const Action& action : actions) {
        if (action.kind == kForward) most = std::max(most, ++in_flight);
        if (action.kind == kBackwardWeight) --in_flight;
      }
      ASSERT_EQ(in_flight, 0);
      ASSERT_LE(most, test::published_stashes(schedule, stage));
      reached[schedule.kind] += most == test::published_stashes(schedule, stage);
      ASSERT_EQ(played.stages[static_cast<std::size_t>(stage)].peak_stashes, static_cast<std::size_t>(most));
      const int columns = num_columns(assign_columns(actions));
      ASSERT_GE(columns, most);
      ASSERT_LE(columns, most * schedule.placement.num_chunks);
    }
  });
  for (const auto& [kind, times] : reached) EXPECT_GT(times, 100) << name_of(kind) << ": no tight bound";
  EXPECT_EQ(reached.size(), static_cast<std::size_t>(kNumScheduleKinds));
}

TEST(Schedules, WaitAsLongAsTheirFormulaSaysAtUnitCosts) {
  int compared = 0;
  test::for_each_schedule([&](const Schedule& schedule) {
    if (schedule.num_microbatches < test::microbatches_of_formula(schedule)) return;
    const Simulation played = simulate(schedule, {});
    ASSERT_EQ(played.bubble(), test::published_bubble(schedule, {}));
    const double work = 3.0 * schedule.placement.num_chunks * schedule.num_microbatches;
    ASSERT_NEAR(played.bubble_share(), played.bubble() / (work + played.bubble()), 1e-12);
    if (schedule.kind == ScheduleKind::kZbV) {
      for (const Simulation::Stage& stage : played.stages) ASSERT_EQ(stage.idle_inside(), 0);
    }
    ++compared;
  });
  EXPECT_EQ(compared, test::kNumLegal - 28 - 56);  // less zb-h1 and zb-v of few microbatches
}

// Zero-bubble schedules of fewer microbatches than their formula: time that the longest dependency chain adds.
TEST(Schedules, ZeroBubbleSchedulesOfFewMicrobatchesWaitForTheLongestChain) {
  test::for_each_schedule([&](const Schedule& schedule) {
    const bool is_zb_h1 = schedule.kind == ScheduleKind::kZbH1;
    if (!is_zb_h1 && schedule.kind != ScheduleKind::kZbV) return;
    const int p = schedule.placement.num_stages, m = schedule.num_microbatches;
    const double bubble = simulate(schedule, {}).bubble();
    ASSERT_EQ(bubble, p - 1 + std::max(0, is_zb_h1 ? p - m : 3 * p - 1 - 2 * m));
  });
}

// Checks within the range of the formulas (simulator.h): any durations, or W <= F <= B, or W <= F = B.
TEST(Schedules, FormulasHoldForUnequalDurations) {
  int compared = 0;
  const PartDurations unequal{.forward = 4, .backward_data = 5, .backward_weight = 3};
  const PartDurations long_weight{.forward = 2, .backward_data = 1, .backward_weight = 7};
  const PartDurations short_weight{.forward = 4, .backward_data = 4, .backward_weight = 3};
  test::for_each_schedule([&](const Schedule& schedule) {
    if (schedule.num_microbatches < test::microbatches_of_formula(schedule)) return;
    const PartDurations& part = is_v_shaped(schedule.kind)             ? short_weight
                                : schedule.kind == ScheduleKind::kZbH1 ? unequal
                                : schedule.num_microbatches % 2 == 0   ? unequal
                                                                       : long_weight;
    ASSERT_EQ(simulate(schedule, {.parts = {part}}).bubble(), test::published_bubble(schedule, part));
    ++compared;
  });
  EXPECT_EQ(compared, test::kNumLegal - 28 - 56);
}

TEST(Schedules, AreWrittenAsTheirSourcesDrawThem) {
  EXPECT_EQ(written(make_schedule(ScheduleKind::kGpipe, 2, 1, 2), 0), "F0 F1 B0+W0 B1+W1");
  EXPECT_EQ(written(make_schedule(ScheduleKind::k1F1B, 2, 1, 3), 0), "F0 F1 B0+W0 F2 B1+W1 B2+W2");
  EXPECT_EQ(written(make_schedule(ScheduleKind::k1F1B, 2, 1, 3), 1), "F0 B0+W0 F1 B1+W1 F2 B2+W2");
  EXPECT_EQ(written(make_schedule(ScheduleKind::kZbH1, 2, 1, 3), 0), "F0 F1 B0 W0 F2 B1 W1 B2 W2");
  EXPECT_EQ(written(make_schedule(ScheduleKind::kZbH1, 2, 1, 3), 1), "F0 B0 F1 B1 W0 F2 B2 W1 W2");
  EXPECT_EQ(written(make_schedule(ScheduleKind::kInterleaved, 2, 2, 4), 0),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1+W0.1 F3.0 B1.1+W1.1 F2.1 B0.0+W0.0 F3.1 B1.0+W1.0 "
            "B2.1+W2.1 B3.1+W3.1 B2.0+W2.0 B3.0+W3.0");
  EXPECT_EQ(written(make_schedule(ScheduleKind::kInterleaved, 2, 2, 4), 1),
            "F0.0 F1.0 F0.1 B0.1+W0.1 F1.1 B1.1+W1.1 F2.0 B0.0+W0.0 F3.0 B1.0+W1.0 "
            "F2.1 B2.1+W2.1 F3.1 B3.1+W3.1 B2.0+W2.0 B3.0+W3.0");
  EXPECT_EQ(written(make_schedule(ScheduleKind::kZbV, 2, 2, 3), 0),
            "F0.0 F1.0 F2.0 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 B0.0 W0.0 F2.1 B2.1 W2.1 B1.0 W1.0 B2.0 W2.0");
  EXPECT_EQ(written(make_schedule(ScheduleKind::kZbV, 2, 2, 3), 1),
            "F0.0 F0.1 F1.0 F1.1 B0.1 W0.1 F2.0 B0.0 W0.0 F2.1 B1.1 W1.1 B1.0 B2.1 B2.0 W1.0 W2.1 W2.0");
  EXPECT_EQ(written(make_schedule(ScheduleKind::kDualPipeV, 2, 2, 4), 0),
            "F0.0 F1.0 F2.0 F0.1 B0.1 W0.1 F1.1 F3.0 B1.1+W1.1 F2.1 B0.0+W0.0 B2.1+W2.1 F3.1 B1.0+W1.0 "
            "B3.1+W3.1 B2.0 W2.0 B3.0 W3.0");
  EXPECT_EQ(written(make_schedule(ScheduleKind::kDualPipeV, 2, 2, 4), 1),
            "F0.0 F0.1 F1.0 F1.1 F2.0 B0.1+W0.1 F2.1 B0.0+W0.0 F3.0 B1.1+W1.1 F3.1 B1.0+W1.0 "
            "B2.1+W2.1 B2.0+W2.0 B3.1 B3.0 W3.1 W3.0");
}

TEST(Schedules, GroupsOfMicrobatchesAreMegatronsTable) {
  const auto forwards = [](const Schedule& schedule, std::size_t stage) {
    std::string text;
    for (const Action& action : schedule.stages[stage]) {
      if (action.kind == ActionKind::kForward) text += fmt::format("{}.{} ", action.microbatch, action.chunk);
    }
    return text;
  };
  const Schedule drawn = make_schedule(ScheduleKind::kInterleaved, 2, 2, 5, 0, 3);
  for (const std::size_t stage : {0u, 1u})
    EXPECT_EQ(forwards(drawn, stage), "0.0 1.0 2.0 0.1 1.1 2.1 3.0 4.0 3.1 4.1 ");
  int verified = 0;
  for (int stages = 1; stages <= 4; ++stages) {
    for (int chunks = 2; chunks <= 3; ++chunks) {
      for (int microbatches = stages; microbatches <= 12; ++microbatches) {
        for (int group = stages; group <= microbatches; ++group) {
          const int left = microbatches % group;
          if (left != 0 && left < stages) continue;
          const Schedule schedule = make_schedule(ScheduleKind::kInterleaved, stages, chunks, microbatches, 0, group);
          verify(schedule);
          if (group == stages) {
            EXPECT_EQ(schedule.stages, make_schedule(ScheduleKind::kInterleaved, stages, chunks, microbatches).stages);
          }
          ++verified;
        }
      }
    }
  }
  EXPECT_GT(verified, 300);
  EXPECT_THROW(make_schedule(ScheduleKind::kInterleaved, 2, 2, 4, 0, 3), Error);
  EXPECT_THROW(make_schedule(ScheduleKind::kInterleaved, 2, 2, 4, 0, 1), Error);
  EXPECT_THROW(make_schedule(ScheduleKind::kInterleaved, 2, 2, 4, 0, 5), Error);
}

TEST(Schedules, WhatTheyCannotDoIsAUsageErrorThatNamesTheFlag) {
  int refused = 0;
  test::for_each_combination([&](ScheduleKind kind, int stages, int chunks, int microbatches) {
    if (test::is_legal(kind, stages, chunks, microbatches)) return;
    try {
      make_schedule(kind, stages, chunks, microbatches);
      FAIL() << name_of(kind) << " " << stages << " " << chunks << " " << microbatches;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ExitCode::kUsage);
      ASSERT_THAT(error.what(), HasSubstr(fmt::format("--pipeline-schedule {}: expected ", name_of(kind))));
      ++refused;
    }
  });
  EXPECT_EQ(refused, kNumScheduleKinds * 8 * 4 * 32 - test::kNumLegal);
}

std::string refusal(ScheduleKind kind, int stages, int chunks, int microbatches) {
  try {
    make_schedule(kind, stages, chunks, microbatches);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Schedules, ErrorsSayWhatWouldFit) {
  EXPECT_EQ(refusal(ScheduleKind::kInterleaved, 4, 2, 6),
            "--pipeline-schedule interleaved: expected a multiple of --pipeline-model-parallel-size 4 as the number of "
            "microbatches per step, got 6; choose --global-batch-size and --micro-batch-size for 4 or 8");
  EXPECT_EQ(refusal(ScheduleKind::kDualPipeV, 4, 2, 7),
            "--pipeline-schedule dualpipe-v: expected at least 8 microbatches per step, twice "
            "--pipeline-model-parallel-size 4, got 7; raise --global-batch-size, or use --pipeline-schedule zb-v");
  EXPECT_THAT(refusal(ScheduleKind::kInterleaved, 4, 1, 8), HasSubstr("at least 2 chunks per stage, got 1"));
  EXPECT_THAT(refusal(ScheduleKind::k1F1B, 4, 2, 8), HasSubstr("1 chunk per stage, got 2"));
  EXPECT_THAT(refusal(ScheduleKind::k1F1B, 0, 1, 8), HasSubstr("--pipeline-model-parallel-size of at least 1, got 0"));
  EXPECT_THAT(refusal(ScheduleKind::k1F1B, 1, 1, 0), HasSubstr("at least 1 microbatch per step, got 0"));
}

}  // namespace
}  // namespace megalith

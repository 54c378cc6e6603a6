// Exchanges that are actions, and the microbatches whose verbs run between their start and their wait.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "parallel/pipeline_parallel/simulator.h"
#include "tests/support/matchers.h"
#include "tests/unit/parallel/schedule_support.h"

namespace megalith {
namespace {

using Kind = ActionKind;
using testing::ElementsAre;
using testing::HasSubstr;

// A chunk: attention, dispatch, experts, return, merge.
constexpr int kSplitSegments = 5;
ReturnPoints split(int chunks) {
  ReturnPoints returns;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (const int segment : {1, 3}) {
      returns.split.forward.insert(chunk * kSplitSegments + segment);
      returns.split.backward.insert(chunk * kSplitSegments + segment);
    }
  }
  return returns;
}

std::vector<Action> lowered(const Schedule& schedule, int stage) {
  const int chunks = schedule.placement.num_chunks;
  return lower_training_step(insert_messages(schedule, stage),
                             ChunkSegments(static_cast<std::size_t>(chunks), kSplitSegments), {}, {}, split(chunks));
}

bool is_of_verbs(const Action& action) { return action.segment >= 0 || is_exchange(action.kind); }

// "F1": forward of segment 1; ">1" and ".1": start and wait of a forward's exchange; "<1" and ",1": of a backward's.
std::string written(const Action& a) {
  switch (a.kind) {
    case Kind::kStartExchange: return fmt::format("{}{}", a.gradient ? "<" : ">", a.item);
    case Kind::kWaitExchange: return fmt::format("{}{}", a.gradient ? "," : ".", a.item);
    case Kind::kForward: return fmt::format("F{}", a.segment);
    case Kind::kBackwardData: return fmt::format("B{}", a.segment);
    default: return fmt::format("W{}", a.segment);
  }
}

// A line for each turn of a microbatch.
std::vector<std::string> turns(const std::vector<Action>& actions) {
  std::vector<std::string> turns;
  int last = -1;
  for (const Action& a : actions) {
    if (!is_of_verbs(a)) continue;
    if (a.microbatch != last) turns.push_back(fmt::format("{}:", last = a.microbatch));
    turns.back() += " " + written(a);
  }
  return turns;
}

TEST(LoweringOverlap, AForwardAndABackwardAlternateAtTheirExchanges) {
  const Schedule schedule = pair_microbatches(ScheduleKind::k1F1B, 1, 1, 2);
  EXPECT_EQ(num_pairs(schedule), 1);
  EXPECT_THAT(turns(lowered(schedule, 0)),
              ElementsAre("0: F0 F1 >1 .1 F2 F3 >3 .3 F4 B4 B3 <3 W4",  //
                          "1: F0 F1 >1", "0: ,3 B2 B1 <1 W3 W2",        //
                          "1: .1 F2 F3 >3", "0: ,1 B0 W1 W0",           //
                          "1: .3 F4 B4 B3 <3 W4 ,3 B2 B1 <1 W3 W2 ,1 B0 W1 W0"));
}

// The exchanges of one microbatch that runs alone: without other work.
bool is_covered(const std::vector<Action>& actions, std::size_t start) {
  const Action& a = actions[start];
  for (std::size_t i = start + 1; i < actions.size(); ++i) {
    const Action& other = actions[i];
    if (other.kind == Kind::kWaitExchange && other.gradient == a.gradient && other.item == a.item &&
        other.microbatch == a.microbatch)
      return false;
    if (other.segment >= 0 && (other.microbatch != a.microbatch || other.chunk != a.chunk)) return true;
  }
  return false;
}

TEST(LoweringOverlap, EveryExchangeOfAPairHasWorkOfTheOther) {
  std::map<ScheduleKind, int> pairs;
  test::for_each_schedule([&](const Schedule& plain) {
    const Placement& placement = plain.placement;
    const Schedule schedule =
        pair_microbatches(plain.kind, placement.num_stages, placement.num_chunks, plain.num_microbatches);
    verify(schedule);
    ASSERT_LE(simulate(schedule, {}).makespan, simulate(plain, {}).makespan);
    pairs[plain.kind] += num_pairs(schedule);
    if (placement.num_stages > 4 || plain.num_microbatches > 8) return;
    for (int stage = 0; stage < placement.num_stages; ++stage) {
      int of_stage = 0, covered = 0;
      for (const Action& a : schedule.stages[static_cast<std::size_t>(stage)])
        of_stage += a.kind == Kind::kForward && a.with_next ? 1 : 0;
      const std::vector<Action> step = lowered(schedule, stage);  // verified
      for (std::size_t i = 0; i < step.size(); ++i)
        covered += step[i].kind == Kind::kStartExchange && is_covered(step, i) ? 1 : 0;
      ASSERT_EQ(covered, 4 * of_stage) << name_of(plain.kind) << " stage " << stage;
    }
  });
  EXPECT_EQ(pairs[ScheduleKind::kGpipe], 0);
  for (const ScheduleKind kind :
       {ScheduleKind::k1F1B, ScheduleKind::kInterleaved, ScheduleKind::kZbV, ScheduleKind::kDualPipeV})
    EXPECT_GT(pairs[kind], 0) << name_of(kind);
}

TEST(LoweringOverlap, VerifyFindsExchangesOutOfPlace) {
  const std::vector<Action> step = lowered(pair_microbatches(ScheduleKind::k1F1B, 1, 1, 3), 0);
  const ReturnPoints returns = split(1);
  const auto accepts = [&](const std::vector<Action>& damaged, const ReturnPoints& of) {
    try {
      verify(damaged, {kSplitSegments}, {}, {}, of);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(accepts(step, returns));
  EXPECT_FALSE(accepts(step, {}));
  int exchanges = 0;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(i);
    if (step[i].segment >= 0 && (step[i].leaves_exchange || step[i].finishes_exchange)) {
      std::vector<Action> damaged = step;
      damaged[i].leaves_exchange = damaged[i].finishes_exchange = false;
      EXPECT_FALSE(accepts(damaged, returns)) << to_string(step[i]);
    }
    if (!is_exchange(step[i].kind)) continue;
    ++exchanges;
    std::vector<Action> damaged = step;
    damaged.erase(damaged.begin() + at);
    EXPECT_FALSE(accepts(damaged, returns)) << to_string(step[i]);
    // A start moves ahead of its verb, a wait after the verb that reads.
    const bool starts = step[i].kind == Kind::kStartExchange;
    Action verb = step[i];
    verb.kind = verb.gradient ? Kind::kBackwardData : Kind::kForward;
    verb.segment = verb.item + (starts ? 0 : verb.gradient ? -1 : 1);
    const auto place = std::ranges::find_if(damaged, [&](const Action& a) {
      return a.kind == verb.kind && a.segment == verb.segment && a.microbatch == verb.microbatch;
    });
    ASSERT_NE(place, damaged.end());
    damaged.insert(starts ? place : place + 1, step[i]);
    EXPECT_FALSE(accepts(damaged, returns)) << to_string(step[i]);
  }
  EXPECT_EQ(exchanges, 3 * 8);
  // Two exchanges of one direction at once.
  std::vector<Action> damaged = step;
  const auto wait = std::ranges::find(damaged, Kind::kWaitExchange, &Action::kind);
  const Action moved = *wait;
  damaged.erase(wait);
  const auto next = std::find_if(damaged.begin(), damaged.end(), [&](const Action& a) {
    return a.kind == Kind::kStartExchange && a.gradient == moved.gradient && a.item != moved.item;
  });
  damaged.insert(next + 1, moved);
  EXPECT_THAT(error_of(ExitCode::kInternal, [&] { verify(damaged, {kSplitSegments}, {}, {}, returns); }),
              HasSubstr("action list: "));
}

}  // namespace
}  // namespace megalith

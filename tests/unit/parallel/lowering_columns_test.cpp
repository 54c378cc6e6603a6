// Columns as data: their members, partners and count.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "core/base/error.h"
#include "parallel/pipeline_parallel/lowering.h"
#include "tests/support/matchers.h"
#include "tests/unit/parallel/schedule_support.h"

namespace megalith {
namespace {

// A column belongs to one chunk permanently, and to one microbatch from its first action to its last. If a stage
// forwards to itself, each column of one chunk has one partner of the other.
void expect_columns(const std::vector<Action>& actions) {
  using InFlight = std::pair<int, int>;  // chunk, microbatch
  std::map<InFlight, int> left, column_of;
  std::map<int, int> chunk_of;
  std::map<int, InFlight> owner;
  for (const Action& a : actions) ++left[{a.chunk, a.microbatch}];
  for (const Action& a : actions) {
    const InFlight mine{a.chunk, a.microbatch};
    ASSERT_EQ(owner.try_emplace(a.column, mine).first->second, mine) << to_string(a);
    ASSERT_EQ(chunk_of.try_emplace(a.column, a.chunk).first->second, a.chunk) << to_string(a);
    ASSERT_EQ(column_of.try_emplace(mine, a.column).first->second, a.column) << to_string(a);
    if (--left[mine] == 0) owner.erase(a.column);
  }
  ASSERT_EQ(num_columns(actions), static_cast<int>(chunk_of.size())) << "columns are numbered through";
  std::map<int, int> giver_of, taker_of;
  for (const Action& a : actions) {
    if (a.kind != ActionKind::kWaitReceive || a.peer != kThisStage) continue;
    const int other = column_of.at({a.gradient ? a.chunk + 1 : a.chunk - 1, a.microbatch});
    const int taker = a.gradient ? other : a.column, giver = a.gradient ? a.column : other;  // columns of the output
    ASSERT_EQ(giver_of.try_emplace(taker, giver).first->second, giver) << to_string(a);
    ASSERT_EQ(taker_of.try_emplace(giver, taker).first->second, taker) << to_string(a);
  }
}

TEST(LoweringOfColumns, AColumnIsOneChunksAndHasFixedPartners) {
  test::for_each_schedule([](const Schedule& schedule) {
    if (schedule.num_microbatches > 12 && schedule.num_microbatches != test::kMaxMicrobatches) return;
    const Schedule forwards = forwards_of(schedule);
    for (int stage = 0; stage < schedule.placement.num_stages; ++stage) {
      expect_columns(assign_columns(schedule.stages[static_cast<std::size_t>(stage)]));
      expect_columns(assign_columns(insert_messages(schedule, stage)));
      expect_columns(assign_columns(insert_messages(forwards, stage)));
    }
  });
}

// Lists that no schedule makes: the verbs of two chunks in any order that dependencies allow.
TEST(LoweringOfColumns, ColumnsOfRandomListsHaveFixedPartners) {
  std::mt19937 random(7);
  for (int list = 0; list < 200; ++list) {
    constexpr int kMicrobatches = 6;
    const bool hands_over = list % 2 == 0;
    std::vector<Action> actions;
    std::vector<int> done(kMicrobatches, 0);  // per microbatch, of the verbs F0 F1 B1 W1 B0 W0
    for (int left = 6 * kMicrobatches; left > 0; --left) {
      int m = static_cast<int>(random() % kMicrobatches);
      while (done[static_cast<std::size_t>(m)] == 6) m = (m + 1) % kMicrobatches;
      const int verb = done[static_cast<std::size_t>(m)]++;
      const int chunk = verb == 0 || verb > 3 ? 0 : 1;
      constexpr ActionKind kKinds[] = {ActionKind::kForward,      ActionKind::kForward,
                                       ActionKind::kBackwardData, ActionKind::kBackwardWeight,
                                       ActionKind::kBackwardData, ActionKind::kBackwardWeight};
      if (hands_over && (verb == 1 || verb == 4)) {
        const bool gradient = verb == 4;
        actions.push_back({.kind = ActionKind::kSend, .chunk = 1 - chunk, .microbatch = m, .gradient = gradient});
        actions.push_back({.kind = ActionKind::kWaitReceive, .chunk = chunk, .microbatch = m, .gradient = gradient});
      }
      actions.push_back({.kind = kKinds[verb], .chunk = chunk, .microbatch = m});
    }
    expect_columns(assign_columns(actions));
  }
}

// Number of columns of a chunk, by (schedule, stages, chunks, microbatches, stage). Each is captured separately.
TEST(LoweringOfColumns, ColumnsOfAChunkAreFew) {
  struct Case {
    ScheduleKind kind;
    int stages, chunks, microbatches, stage;
    std::vector<int> columns;  // per chunk
  };
  const Case cases[] = {
      {ScheduleKind::k1F1B, 1, 1, 32, 0, {1}},          {ScheduleKind::k1F1B, 4, 1, 32, 0, {4}},
      {ScheduleKind::k1F1B, 4, 1, 32, 1, {6}},          {ScheduleKind::k1F1B, 4, 1, 32, 3, {4}},
      {ScheduleKind::kInterleaved, 2, 2, 8, 0, {5, 8}}, {ScheduleKind::kInterleaved, 2, 2, 8, 1, {6, 6}},
      {ScheduleKind::kZbV, 1, 2, 8, 0, {2, 2}},         {ScheduleKind::kZbV, 4, 2, 32, 3, {10, 10}},
      {ScheduleKind::kDualPipeV, 4, 2, 32, 3, {10, 10}}};
  for (const Case& c : cases) {
    const Schedule schedule = make_schedule(c.kind, c.stages, c.chunks, c.microbatches);
    std::vector<std::set<int>> columns(static_cast<std::size_t>(c.chunks));
    for (const Action& a : assign_columns(insert_messages(schedule, c.stage)))
      columns[static_cast<std::size_t>(a.chunk)].insert(a.column);
    std::vector<int> sizes;
    for (const std::set<int>& of_chunk : columns) sizes.push_back(static_cast<int>(of_chunk.size()));
    EXPECT_EQ(sizes, c.columns) << name_of(c.kind) << " stage " << c.stage;
  }
}

TEST(LoweringOfColumns, VerifyFindsAColumnOfTwoChunksAndAHandOverFromAnother) {
  const ChunkSegments segments{1, 1};
  const std::vector<Action> step = lower_training_step(insert_messages(make_schedule(ScheduleKind::kZbV, 1, 2, 4), 0),
                                                       segments, {.segments_of_bucket = {{0, 1}}});
  const auto refusal = [&](const auto& column_of) {
    std::vector<Action> damaged = step;
    for (Action& a : damaged) {
      if (is_of_microbatch(a.kind)) a.column = column_of(a);
    }
    try {
      verify(damaged, segments, {.segments_of_bucket = {{0, 1}}});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal([](const Action& a) { return a.column; }), "");
  // A column each, but that of the last microbatch's second chunk.
  EXPECT_THAT(
      refusal([](const Action& a) { return a.microbatch == 3 && a.chunk == 1 ? 0 : 2 * a.microbatch + a.chunk; }),
      HasSubstr("is in another chunk's column"));
  EXPECT_EQ(refusal([](const Action& a) { return 2 * a.microbatch + a.chunk; }), "");
  EXPECT_THAT(refusal([](const Action& a) { return a.chunk == 0 ? a.microbatch : 4 + a.microbatch % 2; }),
              HasSubstr("is handed over by another column than before"));
}

}  // namespace
}  // namespace megalith

// Buffers that graphs of attention hold in a step of two layers: all except those private to eager segments.
#include "graphs/held_buffers.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "core/memory/memory_pool.h"
#include "tests/support/matchers.h"

namespace megalith {
namespace {

// Segments 0 and 3 are captured. Segments 1 and 2 form an eager block, and so do those from 4 on.
constexpr int kCaptured = 0, kMlpSegment = 1, kNorm = 2, kNext = 3, kHead = 4, kTail = 5, kEnd = 6;

class HeldBuffers : public testing::Test {
 protected:
  HeldBuffers() {
    for (const int segment : {kCaptured, kMlpSegment, kNorm, kNext, kHead, kTail, kEnd})
      begin(ActionKind::kForward, segment);
    begin(ActionKind::kOffload, -1);
    begin(ActionKind::kSend, -1);
    for (const int segment : {kEnd, kTail, kHead, kNext, kNorm, kMlpSegment, kCaptured})
      begin(ActionKind::kBackwardData, segment);
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      if (actions_[i].segment == kCaptured || actions_[i].segment == kNext)
        runs_.runs.push_back({.first = i, .count = 1, .graph = runs_.graphs++});
    }
  }

  // Flags of a buffer that a segment's forward allocates, `readers` access and the lists of `passed_by` hold.
  std::vector<bool> held(int segment, const std::vector<std::pair<ActionKind, int>>& readers, int keeper = -1,
                         const std::vector<int>& passed_by = {}) {
    Arena arena(pool_, Arena::Mode::kRecording);
    arena.begin_scope({.column = 0, .segment = segment, .verb = 0});
    void* const buffer = arena.allocate(512, MemoryCategory::kActivations, "x");
    if (keeper >= 0) {
      arena.begin_scope({.column = 0, .segment = keeper, .verb = 0});
      arena.classify(buffer, MemoryCategory::kActivations, "act");
    }
    for (const int by : passed_by) {
      arena.begin_scope({.column = 0, .segment = by, .verb = 0});
      arena.mark_passed(buffer);
    }
    Timeline timeline;
    timeline.add_lane("compute");
    std::vector<std::size_t> entries;
    for (const Action& action : actions_) {
      entries.push_back(timeline.entries().size());
      Access access("op");
      for (const auto& [kind, of] : readers)
        if (action.kind == kind && action.segment == of) access.add(buffer, 512, false);
      timeline.op(0, access);
    }
    return held_by_graphs(timeline, arena, actions_, entries, runs_);
  }

  void begin(ActionKind kind, int segment) { actions_.push_back({.kind = kind, .segment = segment}); }

  MemoryPool pool_{DeviceType::kPlan};
  std::vector<Action> actions_;
  GraphRunPlan runs_;
};

constexpr auto kF = ActionKind::kForward, kB = ActionKind::kBackwardData;

TEST_F(HeldBuffers, LeaveOutWhatEagerNeighboursHaveForThemselves) {
  EXPECT_THAT(held(kMlpSegment, {{kF, kMlpSegment}}), ElementsAre(false));
  EXPECT_THAT(held(kMlpSegment, {{kF, kMlpSegment}, {kF, kNorm}, {kB, kNorm}, {kB, kMlpSegment}}, kNorm),
              ElementsAre(false));
  EXPECT_THAT(held(kHead, {{kF, kHead}, {kB, kHead}}, kHead), ElementsAre(false));
  EXPECT_THAT(held(kTail, {{kF, kTail}, {kF, kEnd}}, -1, {kTail}), ElementsAre(false)) << "to an eager one";
  EXPECT_THAT(held(kMlpSegment, {{kF, kMlpSegment}, {ActionKind::kOffload, -1}, {kB, kMlpSegment}}), ElementsAre(false))
      << "moves";
}

TEST_F(HeldBuffers, AreWhatGraphsAccessAndWhatPassesThem) {
  EXPECT_THAT(held(kCaptured, {{kF, kCaptured}}), ElementsAre(true));
  EXPECT_THAT(held(kMlpSegment, {{kF, kMlpSegment}, {kF, kNext}}), ElementsAre(true)) << "its input";
  EXPECT_THAT(held(kCaptured, {{kF, kMlpSegment}}), ElementsAre(true)) << "allocated by a verb that is not run again";
  EXPECT_THAT(held(kNorm, {{kF, kNorm}, {kF, kHead}}), ElementsAre(true)) << "in the output list of the graph";
  EXPECT_THAT(held(kMlpSegment, {{kF, kMlpSegment}, {kB, kMlpSegment}}, kNext), ElementsAre(true))
      << "in the stash of a captured segment";
  EXPECT_THAT(held(kNorm, {{kF, kNorm}}, -1, {kNorm}), ElementsAre(true)) << "in its list, though it is not read";
  EXPECT_THAT(held(kMlpSegment, {{kF, kMlpSegment}, {ActionKind::kSend, -1}}), ElementsAre(true));
  EXPECT_THAT(held(-1, {{kF, kMlpSegment}}), ElementsAre(true)) << "of the step loop";
}

TEST_F(HeldBuffers, AreNoneWithoutGraphs) {
  runs_ = {};
  EXPECT_THAT(held(kCaptured, {{kF, kCaptured}}), IsEmpty());
}

}  // namespace
}  // namespace megalith

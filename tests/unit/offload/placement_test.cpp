// Tests of placement: waits are as late as memory allows, with the least memory that avoids stalls. Forward of a layer
// allocates 1 GB, and its backward frees it.
#include "offload/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "offload/lowering.h"
#include "tests/support/matchers.h"
#include "tests/unit/offload/layered_step.h"

namespace megalith::test {
namespace {

using enum SlotFate;

struct Placed {
  std::vector<SlotFate> fates;
  OffloadPoints points;  // slots that move
  double peak = 0;       // GB, with the moving slots away
  double stalls = 0;
};

Placed place(double seconds, double max_stalls, double room = 1000, int layers = -1) {
  const LayeredStep layered;
  std::vector<double> alive(layered.actions.size());
  for (std::size_t i = 0; i < alive.size(); ++i)
    alive[i] = LayeredStep::kGb * std::max(0, layered.actions[i].segment + 1);
  const std::vector<double> bytes = layered.bytes();
  const CopyRates rates = LayeredStep::rates(seconds, seconds);
  Placed placed{.fates = {}, .points = layered.points()};
  placed.fates = place_copies(layered.step(),
                              {.bytes = bytes,
                               .alive = alive,
                               .rates = rates,
                               .max_stalls = max_stalls,
                               .layers = layers,
                               .room = room * LayeredStep::kGb},
                              placed.points);
  std::vector<OffloadSlot> moves;
  for (std::size_t i = 0; i < placed.fates.size(); ++i) {
    if (placed.fates[i] == kMoves) moves.push_back(placed.points.slots[i]);
  }
  placed.points.slots = moves;
  double away = 0;
  std::size_t next = 0;
  for (const Action& action : insert_offloads(layered.actions, placed.points)) {
    if (action.kind == ActionKind::kWaitOffload) away += LayeredStep::kGb;
    if (action.kind == ActionKind::kReload) away -= LayeredStep::kGb;
    if (!is_of_slot(action.kind)) placed.peak = std::max(placed.peak, (alive[next++] - away) / LayeredStep::kGb);
  }
  placed.stalls = forecast_copies(layered.step(), placed.points, bytes, rates).waits();
  return placed;
}

TEST(OffloadPlacement, TakesTheLeastMemoryWhereCopiesHide) {
  const Placed placed = place(0.5, 0.005);
  EXPECT_THAT(placed.fates, ElementsAre(kMoves, kMoves, kMoves, kFreesNothing));  // the last slot would return at once
  EXPECT_EQ(placed.peak, 2);
  for (const OffloadSlot& slot : placed.points.slots) {
    EXPECT_EQ(slot.lag, 1);
    EXPECT_EQ(slot.ahead, 1);
  }
}

TEST(OffloadPlacement, WaitsLaterAndMovesLessWhereTheLinkIsSlow) {
  // A slot takes 1.5 s, a layer 1 s in forward and 2 s in backward. A lag of one layer would stall; with two slots, a
  // lag of two layers does not.
  const Placed placed = place(1.5, 0.005);
  EXPECT_THAT(placed.fates, ElementsAre(kMoves, kMoves, kStalls, kFreesNothing));
  EXPECT_EQ(placed.peak, 3);
  EXPECT_EQ(placed.stalls, 0);
  for (const OffloadSlot& slot : placed.points.slots) {
    EXPECT_EQ(slot.lag, 2);
    EXPECT_EQ(slot.ahead, 1);
  }
}

TEST(OffloadPlacement, AtDistancesThatAreSaidMovesWhatHidesThere) {
  constexpr double kAny = 1000;
  EXPECT_THAT(place(1.5, 0.005, kAny, 1).fates, ElementsAre(kStalls, kStalls, kStalls, kFreesNothing));
  for (const int layers : {2, 3}) {
    SCOPED_TRACE(layers);
    const Placed placed = place(1.5, 0.005, kAny, layers);
    EXPECT_THAT(placed.fates,
                ElementsAre(kMoves, layers == 2 ? kMoves : kFreesNothing, testing::Ne(kMoves), testing::Ne(kMoves)));
    EXPECT_EQ(placed.stalls, 0);
    for (const OffloadSlot& slot : placed.points.slots) {
      EXPECT_EQ(slot.lag, layers);
      EXPECT_EQ(slot.ahead, layers);
    }
  }
}

TEST(OffloadPlacement, TakesLessMemoryForMoreStalls) {
  // With a lag of one layer, each of three waits takes 0.5 s of 15 s.
  EXPECT_EQ(place(1.5, 0.099).peak, 3);
  const Placed placed = place(1.5, 0.101);
  EXPECT_EQ(placed.peak, 2);
  EXPECT_DOUBLE_EQ(placed.stalls, 1.5);
}

TEST(OffloadPlacement, MovesNothingThatWouldComeBackBeforeItHasLeft) {
  const Placed placed = place(50, 0.005);
  EXPECT_THAT(placed.fates, ElementsAre(kStalls, kStalls, kStalls, kFreesNothing));
  EXPECT_EQ(placed.peak, 5);
}

TEST(OffloadPlacement, WaitsAsLongAsItTakesWhereTheDeviceHasNoRoom) {
  const Placed placed = place(1.5, 0.005, 2.5);
  EXPECT_EQ(placed.peak, 2);
  EXPECT_DOUBLE_EQ(placed.stalls, 1.5);
  EXPECT_EQ(place(1.5, 0.005, 3.5).stalls, 0);
}

TEST(OffloadPlacement, KnowsWhatIsAliveInEachAction) {
  Timeline timeline;
  const int lane = timeline.add_lane("compute");
  MemoryPool pool(DeviceType::kPlan);
  Arena arena(pool, Arena::Mode::kRecording);
  std::vector<Action> actions;
  std::vector<std::size_t> entries;
  const auto action = [&] {
    actions.push_back({.kind = ActionKind::kForward, .segment = static_cast<int>(actions.size())});
    entries.push_back(timeline.entries().size());
    arena.begin_scope({.segment = actions.back().segment});
  };
  const auto touch = [&](void* data) {
    Access access("op");
    access.add(data, 256, true);
    timeline.op(lane, access);
  };
  const auto allocate = [&](std::size_t bytes) { return arena.allocate(bytes, MemoryCategory::kWorkspace, "tensor"); };
  action();
  void* const kept = allocate(512);
  touch(kept);
  action();
  touch(allocate(1024));  // its life ends before the next begins
  touch(allocate(256));
  allocate(1 << 20);  // never accessed
  action();
  touch(kept);
  action();
  touch(allocate(256));
  EXPECT_THAT(bytes_alive({.arena = arena, .timeline = timeline, .actions = actions, .entries = entries}),
              ElementsAre(512, 512 + 1024, 512, 256));
}

}  // namespace
}  // namespace megalith::test

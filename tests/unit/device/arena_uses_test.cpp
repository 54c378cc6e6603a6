// Places of a scope's uses in a step: separate, or equal for all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/memory/arena.h"
#include "tests/support/tier.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

constexpr std::size_t kBytes = 4 << 20;  // more than a layout may lose

ArenaScope forward(std::int32_t column) { return {.column = column, .segment = 1, .verb = 0}; }

// Rotating columns, each alive until the last of `alive` turns.
class Turns {
 public:
  struct Shape {
    int columns, alive, turns;
  };
  explicit Turns(const Shape& shape) {
    std::deque<void*> alive;
    for (int turn = 0; turn < shape.turns; ++turn) {
      recording_.begin_scope(forward(turn % shape.columns));
      alive.push_back(recording_.allocate(kBytes, MemoryCategory::kActivations, "x"));
      Access access("op");
      access.add(alive.back(), 1, true);
      if (std::ssize(alive) == shape.alive) {
        access.add(alive.front(), 1, false);
        alive.pop_front();
      }
      compute_.announce(access);
    }
  }
  ArenaPlan plan(bool by_use) const { return plan_arena(timeline_, recording_, {.by_use = by_use}); }
  // All uses of column 0 have one place.
  ArenaPlan plan_but_the_first() const {
    std::vector<bool> same_place;
    for (const Arena::Recorded& each : recording_.recorded()) same_place.push_back(each.key.scope.column == 0);
    return plan_arena(timeline_, recording_, {.by_use = true, .same_place = same_place});
  }

 private:
  MemoryPool pool_{DeviceType::kPlan};
  Timeline timeline_;
  Arena recording_{pool_, Arena::Mode::kRecording};
  Stream compute_{DeviceType::kPlan, "compute", {.timeline = &timeline_}};
};

// Two at a time, but each pair of columns at some time.
constexpr Turns::Shape kThreeColumns{.columns = 3, .alive = 2, .turns = 6};

TEST(ArenaUses, TakeNoMoreThanIsAliveWhereEachHasItsPlaces) {
  const Turns step(kThreeColumns);
  const ArenaPlan shared = step.plan(false), by_use = step.plan(true);
  EXPECT_EQ(shared.live_bytes, 2 * kBytes);
  EXPECT_EQ(shared.peak_bytes, 3 * kBytes);
  EXPECT_EQ(by_use.live_bytes, 2 * kBytes);
  EXPECT_EQ(by_use.peak_bytes, 2 * kBytes);
  EXPECT_EQ(shared.slots.size(), 3u);
  EXPECT_EQ(by_use.slots.size(), 6u);
  EXPECT_NE(digest_of(shared), digest_of(by_use));
}

TEST(ArenaUses, OfALongStepTakeNoMoreThanIsAlive) {
  const int kTurns = 60'000 / test::one_of(test::kIsSlow ? 10 : 1);
  const Turns step({.columns = 9, .alive = 6, .turns = kTurns});
  const ArenaPlan shared = step.plan(false), by_use = step.plan(true);
  EXPECT_EQ(shared.peak_bytes, 9 * kBytes);
  EXPECT_EQ(by_use.live_bytes, 6 * kBytes);
  EXPECT_EQ(by_use.peak_bytes, 6 * kBytes);
  EXPECT_EQ(by_use.slots.size(), static_cast<std::size_t>(kTurns));
}

// `by_use`: a column whose uses have separate places.
void expect_same_places_in_every_step(const ArenaPlan& plan, std::int32_t by_use) {
  MemoryPool pool(DeviceType::kCpu);
  Arena arena(pool, Arena::Mode::kPlanned);
  arena.use(plan);
  for (int step = 0; step < 3; ++step) {
    arena.begin_step();
    for (std::int32_t use = 0; use < 2 * 3; ++use) {
      const ArenaKey key{.scope = forward(use % 3), .ordinal = 0};
      arena.begin_scope(key.scope);
      void* const at = arena.allocate(kBytes, MemoryCategory::kActivations, "x");
      const auto of_all = plan.slots.find(key);
      const auto& slot = of_all != plan.slots.end() ? of_all->second
                                                    : plan.slots.at({.scope = key.scope, .ordinal = 0, .use = use / 3});
      const auto offset = slot.offset;
      EXPECT_EQ(at, static_cast<std::byte*>(arena.block()) + offset) << use;
      EXPECT_EQ(arena.place_of(key).address, at) << use;  // address in the latest use
      EXPECT_EQ(arena.owner_of(at), "x") << use;
    }
  }
  EXPECT_EQ(arena.touched_bytes(), plan.peak_bytes);
  arena.begin_scope(forward(by_use));
  EXPECT_THAT(error_of([&] { arena.allocate(kBytes, MemoryCategory::kActivations, "a third"); }),
              testing::HasSubstr("a third"));
}

TEST(ArenaUses, HaveTheSamePlacesInEveryStep) {
  const Turns step(kThreeColumns);
  const ArenaPlan by_use = step.plan(true), but_the_first = step.plan_but_the_first();
  EXPECT_EQ(by_use.slots.size(), 6u);
  EXPECT_EQ(but_the_first.slots.size(), 5u);
  EXPECT_EQ(but_the_first.peak_bytes, 3 * kBytes);
  expect_same_places_in_every_step(by_use, 0);
  expect_same_places_in_every_step(but_the_first, 1);
}

}  // namespace
}  // namespace megalith

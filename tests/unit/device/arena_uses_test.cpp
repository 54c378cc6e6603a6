// Places of a scope's uses in a step, each by itself or all alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/device/arena.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

constexpr std::size_t kBytes = 512;

ArenaScope forward(std::int32_t column) { return {.column = column, .segment = 1, .verb = 0}; }

// Three columns by turns, each alive with the one before it and the one behind: two at a time, but each pair of columns
// at some time.
class ThreeColumns {
 public:
  ThreeColumns() {
    void* before = nullptr;
    for (int use = 0; use < 2 * 3; ++use) {
      recording_.begin_scope(forward(use % 3));
      void* now = recording_.allocate(kBytes, MemoryCategory::kActivations, "x");
      Access access("op");
      if (before != nullptr) access.add(before, 1, false);
      access.add(now, 1, true);
      compute_.announce(access);
      before = now;
    }
  }
  ArenaPlan plan(bool by_use) const { return plan_arena(timeline_, recording_, {.by_use = by_use}); }

 private:
  MemoryPool pool_{DeviceType::kPlan};
  Timeline timeline_;
  Arena recording_{pool_, Arena::Mode::kRecording};
  Stream compute_{DeviceType::kPlan, "compute", {.timeline = &timeline_}};
};

TEST(ArenaUses, TakeNoMoreThanIsAliveWhereEachHasItsPlaces) {
  const ThreeColumns step;
  const ArenaPlan alike = step.plan(false), by_use = step.plan(true);
  EXPECT_EQ(alike.live_bytes, 2 * kBytes);
  EXPECT_EQ(alike.peak_bytes, 3 * kBytes);
  EXPECT_EQ(by_use.live_bytes, 2 * kBytes);
  EXPECT_EQ(by_use.peak_bytes, 2 * kBytes);
  EXPECT_EQ(alike.slots.size(), 3u);
  EXPECT_EQ(by_use.slots.size(), 6u);
  EXPECT_NE(digest_of(alike), digest_of(by_use));
}

TEST(ArenaUses, HaveTheSamePlacesInEveryStep) {
  const ArenaPlan plan = ThreeColumns().plan(true);
  MemoryPool pool(DeviceType::kCpu);
  Arena arena(pool, Arena::Mode::kPlanned);
  arena.use(plan);
  for (int step = 0; step < 3; ++step) {
    arena.begin_step();
    for (std::int32_t use = 0; use < 2 * 3; ++use) {
      const ArenaKey key{.scope = forward(use % 3), .ordinal = 0};
      arena.begin_scope(key.scope);
      void* const at = arena.allocate(kBytes, MemoryCategory::kActivations, "x");
      const auto offset = plan.slots.at({.scope = key.scope, .ordinal = 0, .use = use / 3}).offset;
      EXPECT_EQ(at, static_cast<std::byte*>(arena.block()) + offset) << use;
      EXPECT_EQ(arena.place_of(key).address, at) << use;  // of the latest use
      EXPECT_EQ(arena.owner_of(at), "x") << use;
    }
  }
  EXPECT_EQ(arena.touched_bytes(), plan.peak_bytes);
  arena.begin_scope(forward(0));
  EXPECT_THAT(error_of([&] { arena.allocate(kBytes, MemoryCategory::kActivations, "a third"); }),
              testing::HasSubstr("a third"));
}

}  // namespace
}  // namespace megalith

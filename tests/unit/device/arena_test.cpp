#include "core/memory/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

constexpr auto kActivations = MemoryCategory::kActivations;

// A step written down by hand.
class ArenaPlanTest : public testing::Test {
 protected:
  void* allocate(std::size_t bytes, std::string_view owner = "x", MemoryCategory category = kActivations) {
    return recording_.allocate(bytes, category, owner);
  }
  void op(Stream& stream, std::vector<void*> touched, const char* name = "op") {
    Access access(name);
    for (void* buffer : touched) access.add(buffer, 1, true);
    stream.announce(access);
  }
  ArenaPlan plan() const { return plan_arena(timeline_, recording_); }
  static const ArenaPlan::Slot& slot(const ArenaPlan& plan, std::int32_t ordinal, ArenaScope scope = {}) {
    return plan.slots.at({scope, ordinal});
  }
  static bool share(const ArenaPlan::Slot& a, const ArenaPlan::Slot& b) {
    return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  }

  MemoryPool pool_{DeviceType::kPlan};
  Timeline timeline_;
  Arena recording_{pool_, Arena::Mode::kRecording};
  Stream compute_{DeviceType::kPlan, "compute", {.timeline = &timeline_}};
  Stream comm_{DeviceType::kPlan, "comm", {.timeline = &timeline_}};
};

TEST_F(ArenaPlanTest, ABufferLivesFromItsFirstToItsLastAccess) {
  recording_.begin_scope({});
  void* a = allocate(1000);
  void* b = allocate(1000);
  void* c = allocate(1000);
  op(compute_, {a});
  op(compute_, {a, b});
  op(compute_, {b, c});
  op(compute_, {c});
  const ArenaPlan p = plan();
  EXPECT_TRUE(share(slot(p, 0), slot(p, 2)));  // a is dead when c is born
  EXPECT_FALSE(share(slot(p, 0), slot(p, 1)));
  EXPECT_FALSE(share(slot(p, 1), slot(p, 2)));
  EXPECT_EQ(p.peak_bytes, 2048u);
  EXPECT_EQ(p.live_bytes, 2048u);
}

// If ops run concurrently, a buffer's memory is reused only by an op that depends on it anyway.
TEST_F(ArenaPlanTest, ConcurrentOpsKeepABufferAndNoWorkspace) {
  std::vector<void*> buffers;
  for (int column : {0, 0, 1}) {  // the same buffers in two microbatches, and those of another
    recording_.begin_scope({.column = column});
    buffers.push_back(allocate(1000));
    buffers.push_back(allocate(1000, "workspace", MemoryCategory::kWorkspace));
  }
  for (void* buffer : buffers) op(compute_, {buffer});
  const auto shares = [&](std::int64_t ops) {
    const ArenaPlan p = plan_arena(timeline_, recording_, {.concurrent_ops = ops});
    return share(slot(p, 0), slot(p, 0, {.column = 1}));
  };
  EXPECT_TRUE(shares(0));
  EXPECT_TRUE(shares(1));
  EXPECT_FALSE(shares(2));
  const ArenaPlan p = plan_arena(timeline_, recording_, {.concurrent_ops = 2});
  EXPECT_TRUE(share(slot(p, 1), slot(p, 0, {.column = 1})));
}

TEST_F(ArenaPlanTest, OffsetsAndSizesAreMultiplesOf256AndZeroBytesAreLegal) {
  recording_.begin_scope({});
  std::vector<void*> all;
  for (std::size_t bytes : {0, 1, 256, 257, 1023}) all.push_back(allocate(bytes));
  op(compute_, all);
  const ArenaPlan p = plan();
  EXPECT_EQ(p.slots.size(), 5u);
  for (const auto& [key, s] : p.slots) {
    EXPECT_EQ(s.offset % 256, 0u);
    EXPECT_EQ(s.bytes % 256, 0u);
    EXPECT_GT(s.bytes, 0u);
  }
  EXPECT_EQ(p.peak_bytes, 256u * (1 + 1 + 1 + 2 + 4));
}

TEST_F(ArenaPlanTest, WorkOnAnotherStreamHoldsItsBufferUntilTheComputeStreamWaitsForIt) {
  Event ready("ready");
  Event sent("sent");
  recording_.begin_scope({});
  void* gradient = allocate(512);
  op(compute_, {gradient});
  compute_.record(ready);
  comm_.wait(ready);
  op(comm_, {gradient}, "reduce");
  comm_.record(sent);
  void* before = allocate(512);
  op(compute_, {before});
  compute_.wait(sent);
  void* after = allocate(512);
  op(compute_, {after});
  const ArenaPlan p = plan();
  EXPECT_FALSE(share(slot(p, 0), slot(p, 1)));
  EXPECT_TRUE(share(slot(p, 0), slot(p, 2)));
}

TEST_F(ArenaPlanTest, ABranchForkedBeforeAWaitIsNotOrderedAfterWhatThatWaitJoins) {
  // comm's op and copy's op run at the same time, although the compute stream has no op between fork and join.
  Stream copy(DeviceType::kPlan, "copy", {.timeline = &timeline_});
  Event fork("fork");
  Event comm_done("comm done");
  Event copy_done("copy done");
  recording_.begin_scope({});
  void* start = allocate(256);
  void* a = allocate(512);
  void* b = allocate(512);
  op(compute_, {start});
  compute_.record(fork);
  comm_.wait(fork);
  copy.wait(fork);
  op(comm_, {a});
  comm_.record(comm_done);
  compute_.wait(comm_done);
  op(copy, {b});
  copy.record(copy_done);
  compute_.wait(copy_done);
  op(compute_, {start});
  const ArenaPlan p = plan();
  EXPECT_FALSE(share(slot(p, 1), slot(p, 2)));
}

TEST_F(ArenaPlanTest, AStreamThatTheComputeStreamDoesNotJoinIsAnError) {
  Event done("done");
  recording_.begin_scope({});
  void* a = allocate(256);
  op(comm_, {a}, "reduce");
  comm_.record(done);
  compute_.wait(done);
  EXPECT_NO_THROW(plan());
  op(comm_, {a}, "late reduce");
  EXPECT_THAT(error_of([&] { plan(); }), AllOf(HasSubstr("late reduce"), HasSubstr("stream comm")));
}

TEST_F(ArenaPlanTest, EveryMicrobatchOfAColumnGetsTheSameAddresses) {
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    for (std::int32_t column = 0; column < 2; ++column) {
      recording_.begin_scope({.column = column, .segment = 1, .verb = 0});
      void* stash = allocate(1024, "fc1");
      void* scratch = allocate(2048, "scratch", MemoryCategory::kWorkspace);
      op(compute_, {stash, scratch});
      op(compute_, {stash});
    }
  }
  const ArenaPlan p = plan();
  EXPECT_EQ(p.slots.size(), 4u);
  EXPECT_EQ(p.peak_bytes, 3072u);  // no two lives overlap in this order
}

TEST_F(ArenaPlanTest, ColumnsThatAreAliveTogetherDoNotShareMemory) {
  std::vector<void*> stash;
  for (std::int32_t column = 0; column < 2; ++column) {
    recording_.begin_scope({.column = column, .segment = 1, .verb = 0});
    stash.push_back(allocate(1024, "fc1"));
    op(compute_, {stash.back()});
  }
  for (void* s : stash) op(compute_, {s});
  const ArenaPlan p = plan();
  EXPECT_FALSE(share(slot(p, 0, {0, 1, 0}), slot(p, 0, {1, 1, 0})));
}

TEST_F(ArenaPlanTest, TwoMicrobatchesInFlightInOneColumnAreAnError) {
  std::vector<void*> stash;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    recording_.begin_scope({.column = 0, .segment = 4, .verb = 0});
    stash.push_back(allocate(1024, "fc1"));
    op(compute_, {stash.back()});
  }
  for (void* s : stash) op(compute_, {s});
  EXPECT_THAT(error_of([&] { plan(); }), AllOf(HasSubstr("fc1"), HasSubstr("segment 4"), HasSubstr("two at once")));
}

TEST_F(ArenaPlanTest, ASizeThatChangesBetweenMicrobatchesIsAnError) {
  for (std::size_t bytes : {1024, 2048}) {
    recording_.begin_scope({.column = 0, .segment = 5, .verb = 1});
    op(compute_, {allocate(bytes, "act")});
  }
  EXPECT_THAT(error_of([&] { plan(); }), AllOf(HasSubstr("act"), HasSubstr("1024 bytes"), HasSubstr("2048")));
}

TEST_F(ArenaPlanTest, AnAccessBeyondItsBufferIsAnError) {
  recording_.begin_scope({});
  void* a = allocate(1000, "norm output");
  allocate(1000);
  Access access("gemm");
  access.add(a, 1024, false);  // within the rounded size of the buffer
  compute_.announce(access);
  EXPECT_NO_THROW(plan());
  access.add(static_cast<std::byte*>(a) + 512, 600, false);
  compute_.announce(access);
  EXPECT_THAT(error_of([&] { plan(); }),
              AllOf(HasSubstr("gemm"), HasSubstr("norm output"), HasSubstr("88 bytes past")));
}

TEST_F(ArenaPlanTest, ForecastsWhoOwnsTheMemoryAtThePeak) {
  recording_.begin_scope({});
  void* early = allocate(5000, "early", MemoryCategory::kWorkspace);
  op(compute_, {early});
  void* kept = allocate(4096, "unnamed", MemoryCategory::kWorkspace);
  recording_.classify(static_cast<std::byte*>(kept) + 100, kActivations, "fc1");
  void* scratch = allocate(2048, "scratch", MemoryCategory::kWorkspace);
  op(compute_, {kept, scratch});
  op(compute_, {kept});
  recording_.classify(&timeline_, kActivations, "not an arena address");
  const ArenaPlan p = plan();
  EXPECT_EQ(p.live_bytes, 6144u);
  EXPECT_EQ(p.live_by_category[static_cast<std::size_t>(kActivations)], 4096u);
  EXPECT_EQ(p.live_by_category[static_cast<std::size_t>(MemoryCategory::kWorkspace)], 2048u);
  EXPECT_EQ(p.live_activations, (std::map<std::string, std::size_t>{{"fc1", 4096}}));
  EXPECT_EQ(slot(p, 1).owner, "fc1");
  EXPECT_EQ(slot(p, 1).category, kActivations);
}

TEST_F(ArenaPlanTest, NeedsARecordingArena) {
  Arena unplanned(pool_, Arena::Mode::kUnplanned);
  EXPECT_EQ(exit_code_of([&] { plan_arena(timeline_, unplanned); }), ExitCode::kInternal);
}

// A plan of two buffers for the tests of the arena itself.
ArenaPlan small_plan() {
  ArenaPlan plan;
  plan.slots[{{0, 2, 0}, 0}] = {.offset = 0, .bytes = 512, .category = kActivations, .owner = "a"};
  plan.slots[{{0, 2, 0}, 1}] = {.offset = 512, .bytes = 256, .category = kActivations, .owner = "b"};
  plan.slots[{{0, 3, 1}, 0}] = {.offset = 0, .bytes = 768, .category = kActivations, .owner = "c"};
  plan.peak_bytes = 768;
  return plan;
}

TEST(Arena, APlannedStepGetsTheSameAddressesEveryTime) {
  MemoryPool pool(DeviceType::kCpu);
  Arena arena(pool, Arena::Mode::kPlanned);
  const ArenaPlan plan = small_plan();
  arena.use(plan);
  EXPECT_EQ(arena.block_bytes(), 768u);
  EXPECT_EQ(arena.touched_bytes(), 0u);
  std::vector<void*> first;
  for (int step = 0; step < 3; ++step) {
    std::vector<void*> addresses;
    arena.begin_scope({0, 2, 0});
    addresses.push_back(arena.allocate(500, kActivations, "a"));
    addresses.push_back(arena.allocate(1, kActivations, "b"));
    arena.begin_scope({0, 3, 1});
    addresses.push_back(arena.allocate(700, kActivations, "c"));
    std::memset(addresses[2], 1, 768);
    if (step == 0) first = addresses;
    EXPECT_EQ(addresses, first);
  }
  EXPECT_EQ(static_cast<std::byte*>(first[1]) - static_cast<std::byte*>(first[0]), 512);
  EXPECT_EQ(first[2], first[0]);
  EXPECT_EQ(arena.touched_bytes(), plan.peak_bytes);
  EXPECT_EQ(pool.system_allocations(), 1);
}

TEST(Arena, DeviatingFromThePlanIsAnInternalErrorThatSaysWhere) {
  MemoryPool pool(DeviceType::kCpu);
  Arena arena(pool, Arena::Mode::kPlanned);
  EXPECT_EQ(exit_code_of([&] { arena.allocate(1, kActivations, "x"); }), ExitCode::kInternal);  // no plan yet
  const ArenaPlan plan = small_plan();
  arena.use(plan);
  arena.begin_scope({0, 2, 0});
  const auto larger = [&] {
    arena.begin_scope({0, 2, 0});
    arena.allocate(513, kActivations, "query");
  };
  EXPECT_EQ(exit_code_of(larger), ExitCode::kInternal);
  EXPECT_THAT(error_of(larger),
              AllOf(HasSubstr("segment 2"), HasSubstr("query"), HasSubstr("expected 512 bytes"), HasSubstr("got 768")));
  const auto one_more = [&] {
    arena.begin_scope({0, 3, 1});
    arena.allocate(700, kActivations, "c");
    arena.allocate(10, kActivations, "extra");
  };
  EXPECT_EQ(exit_code_of(one_more), ExitCode::kInternal);
  EXPECT_THAT(error_of(one_more), AllOf(HasSubstr("allocation 1 of segment 3 verb 1"), HasSubstr("extra")));
  const auto unknown_scope = [&] {
    arena.begin_scope({1, 2, 0});
    arena.allocate(500, kActivations, "a");
  };
  EXPECT_THAT(error_of(unknown_scope), HasSubstr("column 1"));
}

TEST(Arena, TakesTheLargestPlanBeforeTheFirstStepAndNeverGrowsAfter) {
  MemoryPool pool(DeviceType::kCpu);
  Arena arena(pool, Arena::Mode::kPlanned);
  const ArenaPlan small = small_plan();
  ArenaPlan large = small_plan();
  large.slots[{{0, 9, 0}, 0}] = {.offset = 1024, .bytes = 1024};
  large.peak_bytes = 2048;
  ArenaPlan larger = large;
  larger.peak_bytes = 4096;
  arena.use(small);
  arena.use(large);
  arena.use(small);
  EXPECT_EQ(arena.block_bytes(), 2048u);
  EXPECT_EQ(pool.allocated_bytes(), 2048u);
  arena.begin_scope({0, 2, 0});
  arena.allocate(500, kActivations, "a");
  EXPECT_NO_THROW(arena.use(large));
  EXPECT_THAT(error_of([&] { arena.use(larger); }), HasSubstr("must not grow"));
}

TEST(Arena, TakesALargerPlanBetweenStepsOnceItsBlockWasGivenBack) {
  MemoryPool pool(DeviceType::kCpu, 4096);
  Arena arena(pool, Arena::Mode::kPlanned);
  const ArenaPlan small = small_plan();
  ArenaPlan large = small_plan();
  large.peak_bytes = 4096;  // all of it
  const auto allocate = [&] {
    arena.begin_scope({0, 2, 0});
    return arena.allocate(500, kActivations, "a");
  };
  arena.use(small);
  allocate();
  arena.give_back();
  EXPECT_EQ(arena.block(), nullptr);
  EXPECT_EQ(arena.touched_bytes(), 0u);
  EXPECT_EQ(pool.allocated_bytes(), 0u);
  EXPECT_THAT(error_of(allocate), HasSubstr("without a plan"));
  arena.use(large);
  EXPECT_EQ(arena.block_bytes(), 4096u);
  EXPECT_EQ(allocate(), arena.block());
  EXPECT_EQ(pool.reserved_bytes(), 4096u);
}

TEST(Arena, ABlockThatDoesNotFitIsOutOfMemoryAndLeavesTheArenaIntact) {
  MemoryPool pool(DeviceType::kCpu, 1024);
  {
    Arena arena(pool, Arena::Mode::kPlanned);
    const ArenaPlan small = small_plan();
    ArenaPlan large = small_plan();
    large.peak_bytes = 1 << 20;
    arena.use(small);
    EXPECT_EQ(exit_code_of([&] { arena.use(large); }), ExitCode::kOutOfMemory);
    EXPECT_EQ(arena.block_bytes(), 0u);
    arena.use(small);
    EXPECT_EQ(arena.block_bytes(), 768u);
  }
  EXPECT_EQ(pool.allocated_bytes(), 0u);
}

TEST(Arena, UnplannedBuffersComeFromThePoolUntilReset) {
  MemoryPool pool(DeviceType::kCpu);
  {
    Arena arena(pool, Arena::Mode::kUnplanned);
    void* a = arena.allocate(100, kActivations, "a");
    void* b = arena.allocate(100, MemoryCategory::kWorkspace, "b");
    EXPECT_NE(a, b);
    EXPECT_EQ(pool.allocated_bytes(), 512u);
    arena.reset();
    EXPECT_EQ(pool.allocated_bytes(), 0u);
    arena.allocate(100, kActivations, "a");
  }
  EXPECT_EQ(pool.allocated_bytes(), 0u);
}

TEST(Arena, RecordedAddressesAreNeverReusedAndANegativeSizeIsAnError) {
  MemoryPool pool(DeviceType::kPlan);
  Arena arena(pool, Arena::Mode::kRecording);
  std::uintptr_t end = 0;
  for (int i = 0; i < 100; ++i) {
    arena.begin_scope({});
    const auto address = reinterpret_cast<std::uintptr_t>(arena.allocate(1000, kActivations, "x"));
    EXPECT_EQ(address % 256, 0u);
    EXPECT_GE(address, end);
    end = address + 1000;
  }
  EXPECT_THAT(error_of([&] { arena.allocate(static_cast<std::size_t>(-8), kActivations, "rows"); }),
              AllOf(HasSubstr("rows"), HasSubstr("got -8")));
  const auto take = [&] { arena.allocate(std::size_t{3} << 59, kActivations, "large rows"); };
  take();
  EXPECT_THAT(error_of(take), HasSubstr("for large rows in a step: expected a step of at most"));
}

}  // namespace
}  // namespace megalith

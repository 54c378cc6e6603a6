#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/instruments/timeline.h"
#include "tests/support/matchers.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

using std::chrono::milliseconds;

TEST(CpuStream, RunsTasksInTheOrderOfEnqueueing) {
  Stream stream(DeviceType::kCpu, "compute");
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) enqueue(stream, [&order, i] { order.push_back(i); });
  stream.synchronize();
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(CpuStream, DoesNotMakeTheHostWait) {
  Stream stream(DeviceType::kCpu, "compute");
  Gate gate;
  bool done = false;
  enqueue(stream, [&] {
    gate.pass();
    done = true;
  });
  gate.open();  // a stream that runs tasks at once never comes here
  stream.synchronize();
  EXPECT_TRUE(done);
}

TEST(CpuStream, StreamsRunAtTheSameTime) {
  Stream a(DeviceType::kCpu, "a");
  Stream b(DeviceType::kCpu, "b");
  Gate a_runs;
  Gate b_runs;
  bool a_met = false, b_met = false;
  enqueue(a, [&] {
    a_runs.open();
    b_runs.pass();
    b_met = true;
  });
  enqueue(b, [&] {
    b_runs.open();
    a_runs.pass();
    a_met = true;
  });
  a.synchronize();
  b.synchronize();
  EXPECT_TRUE(a_met && b_met);
}

TEST(CpuStream, AnExceptionSurfacesOnceAtTheNextSynchronizeAndStopsLaterTasks) {
  Stream stream(DeviceType::kCpu, "compute");
  bool before = false;
  bool after = false;
  enqueue(stream, [&] { before = true; });
  enqueue(stream, [] { throw std::runtime_error("first"); });
  enqueue(stream, [&] { after = true; });
  enqueue(stream, [] { throw std::runtime_error("second"); });
  EXPECT_EQ(error_of([&] { stream.synchronize(); }), "first");
  EXPECT_TRUE(before);
  EXPECT_FALSE(after);
  EXPECT_EQ(error_of([&] { stream.synchronize(); }), "");
  enqueue(stream, [&] { after = true; });
  stream.synchronize();
  EXPECT_TRUE(after);
}

TEST(CpuStream, SynchronizeReturnsWhenOnlySkippedTasksFollowAFailure) {
  for (int i = 0; i < 50; ++i) {
    Stream stream(DeviceType::kCpu, "compute");
    Gate gate;
    enqueue(stream, [&] {
      gate.pass();
      throw std::runtime_error("failed");
    });
    for (int skipped = 0; skipped < 3; ++skipped) enqueue(stream, [] {});
    // Most often the host waits already when the task fails.
    std::thread opener([&gate, i] {
      if (i % 2 == 0) std::this_thread::sleep_for(milliseconds(2));
      gate.open();
    });
    EXPECT_EQ(error_of([&] { stream.synchronize(); }), "failed");
    opener.join();
  }
}

TEST(CpuStream, AnEventOrdersTwoStreams) {
  Stream a(DeviceType::kCpu, "a");
  Stream b(DeviceType::kCpu, "b");
  Event done("done");
  Gate gate;
  int value = 0;
  int seen = -1;
  enqueue(a, [&] {
    gate.pass();
    value = 7;
  });
  a.record(done);
  b.wait(done);
  enqueue(b, [&] { seen = value; });
  gate.open();
  b.synchronize();
  EXPECT_EQ(seen, 7);
}

TEST(CpuStream, AnEventThatWasNeverRecordedOrdersNothing) {
  Stream stream(DeviceType::kCpu, "compute");
  Event never("never");
  bool ran = false;
  stream.wait(never);
  enqueue(stream, [&] { ran = true; });
  stream.synchronize_host(never);
  stream.synchronize();
  EXPECT_TRUE(ran);
  EXPECT_FALSE(never.recorded());
}

TEST(CpuStream, AWaitRefersToTheRecordBeforeItAlsoWhenTheEventIsRecordedAgainElsewhere) {
  Stream slow(DeviceType::kCpu, "slow");
  Stream fast(DeviceType::kCpu, "fast");
  Stream waiter(DeviceType::kCpu, "waiter");
  Event event("event");
  Gate gate;
  Gate passed;
  bool slow_done = false;
  bool seen = false;
  enqueue(slow, [&] {
    gate.pass();
    slow_done = true;
  });
  slow.record(event);
  waiter.wait(event);
  enqueue(waiter, [&] {
    seen = slow_done;
    passed.open();
  });
  fast.record(event);
  fast.synchronize();
  EXPECT_FALSE(passed.opens_within(milliseconds(50))) << "released by a record made after the wait";
  gate.open();
  waiter.synchronize();
  EXPECT_TRUE(seen);
}

TEST(CpuStream, AnOldRecordThatFiresLateDoesNotUndoANewerOne) {
  Stream slow(DeviceType::kCpu, "slow");
  Stream fast(DeviceType::kCpu, "fast");
  Event event("event");
  Gate gate;
  enqueue(slow, [&] { gate.pass(); });
  slow.record(event);
  fast.record(event);
  fast.synchronize_host(event);  // while `slow` is blocked
  gate.open();
  slow.synchronize();
  Gate passed;
  fast.wait(event);
  enqueue(fast, [&] { passed.open(); });
  EXPECT_TRUE(passed.opens_within(milliseconds(10000)));
  fast.synchronize();
}

TEST(CpuStream, AnEventCarriesTheErrorToThoseWhoWait) {
  Stream a(DeviceType::kCpu, "a");
  Stream b(DeviceType::kCpu, "b");
  Stream c(DeviceType::kCpu, "c");
  Event from_a("from a");
  Event from_b("from b");
  bool ran = false;
  enqueue(a, [] { throw std::runtime_error("lost"); });
  a.record(from_a);
  b.wait(from_a);
  enqueue(b, [&] { ran = true; });
  b.record(from_b);
  c.wait(from_b);
  enqueue(c, [&] { ran = true; });
  EXPECT_EQ(error_of([&] { c.synchronize_host(from_a); }), "lost");
  EXPECT_EQ(error_of([&] { c.synchronize(); }), "lost");
  EXPECT_EQ(error_of([&] { b.synchronize(); }), "lost");
  EXPECT_EQ(error_of([&] { a.synchronize(); }), "lost");
  EXPECT_FALSE(ran);

  a.record(from_a);  // the next record is clean
  b.wait(from_a);
  enqueue(b, [&] { ran = true; });
  b.synchronize();
  EXPECT_TRUE(ran);
}

TEST(CpuStream, TheDestructorFinishesPendingWork) {
  int count = 0;
  {
    Stream stream(DeviceType::kCpu, "compute");
    for (int i = 0; i < 100; ++i) {
      enqueue(stream, [&count] {
        std::this_thread::yield();
        ++count;
      });
    }
  }
  EXPECT_EQ(count, 100);
}

TEST(CpuStream, TheDestructorLogsAnErrorNobodyFetched) {
  testing::internal::CaptureStderr();
  {
    Stream stream(DeviceType::kCpu, "compute");
    enqueue(stream, [] { throw std::runtime_error("nobody looks"); });
    Stream other(DeviceType::kCpu, "other");
    enqueue(other, [] { throw 5; });
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("nobody looks"));
  EXPECT_THAT(log, HasSubstr("an unknown, unreported error"));
}

TEST(CpuStream, AnEventMayBeDestroyedWhileTasksWaitForIt) {
  Stream a(DeviceType::kCpu, "a");
  Stream b(DeviceType::kCpu, "b");
  Gate gate;
  int value = 0;
  enqueue(a, [&] {
    gate.pass();
    value = 1;
  });
  {
    Event event("short-lived");
    a.record(event);
    b.wait(event);
  }
  int seen = 0;
  enqueue(b, [&] { seen = value; });
  gate.open();
  b.synchronize();
  EXPECT_EQ(seen, 1);
}

TEST(CpuStream, ATaskIsDestroyedBeforeTheStreamCountsAsIdle) {
  Stream stream(DeviceType::kCpu, "compute");
  for (int i = 0; i < 200; ++i) {
    auto held = std::make_shared<int>(i);
    enqueue(stream, [held] {});
    stream.synchronize();
    EXPECT_EQ(held.use_count(), 1);
  }
}

TEST(CpuStream, ManyStreamsAndEventsKeepTheOrderOfEveryBuffer) {
  constexpr int kStreams = 6;
  constexpr int kBuffers = 5;
  constexpr int kSteps = 4000;
  std::deque<Stream> streams;
  for (int s = 0; s < kStreams; ++s) streams.emplace_back(DeviceType::kCpu, "stream");
  std::deque<Event> last_use;
  for (int b = 0; b < kBuffers; ++b) last_use.emplace_back("buffer");
  std::vector<std::uint64_t> values(kBuffers, 1);
  std::vector<std::uint64_t> expected(kBuffers, 1);
  std::mt19937 random(11);
  for (int step = 0; step < kSteps; ++step) {
    Stream& stream = streams[random() % kStreams];
    const std::size_t to = random() % kBuffers;
    const std::size_t from = random() % kBuffers;
    // Every access waits for the buffer's last one, so the result is that of one thread.
    stream.wait(last_use[to]);
    stream.wait(last_use[from]);
    enqueue(stream, [&values, to, from, step] {
      values[to] = values[to] * 31 + values[from] + static_cast<std::uint64_t>(step);
    });
    stream.record(last_use[to]);
    stream.record(last_use[from]);
    expected[to] = expected[to] * 31 + expected[from] + static_cast<std::uint64_t>(step);
    if (step % 1000 == 999) streams[random() % kStreams].synchronize_host(last_use[to]);
  }
  for (Stream& stream : streams) stream.synchronize();
  EXPECT_EQ(values, expected);
}

// hazard_checker_test.cpp tests the hazards that it hides.
TEST(CpuStream, ASuppressedWaitIsWaitedForAllTheSame) {
  WaitCounter waits{.suppressed = 0};
  Stream a(DeviceType::kCpu, "a");
  Stream b(DeviceType::kCpu, "b", {.waits = &waits});
  Event event("event");
  Gate gate, passed;
  enqueue(a, [&] { gate.pass(); });
  a.record(event);
  b.wait(event);
  enqueue(b, [&] { passed.open(); });
  EXPECT_FALSE(passed.opens_within(milliseconds(20)));
  gate.open();
  b.synchronize();
  EXPECT_EQ(waits.count, 1);
}

TEST(PlanStream, RecordsItsCallsAndRunsNothing) {
  Timeline timeline;
  Stream compute(DeviceType::kPlan, "compute", {.timeline = &timeline});
  Stream comm(DeviceType::kPlan, "comm", {.timeline = &timeline});
  Event event("event");
  int buffer = 0;
  Access access("op");
  access.writes(Tensorlike{&buffer, sizeof(buffer)});
  access.set_cost({.flops = 12});
  ASSERT_TRUE(compute.needs_access());
  compute.announce(access);
  bool ran = false;
  enqueue(compute, [&] { ran = true; });
  compute.record(event);
  comm.wait(event);
  comm.synchronize_host(event);
  comm.synchronize();
  EXPECT_FALSE(ran);
  EXPECT_TRUE(event.recorded());
  ASSERT_EQ(timeline.lanes(), (std::vector<std::string>{"compute", "comm"}));
  ASSERT_EQ(timeline.entries().size(), 4u);
  EXPECT_EQ(timeline.entries()[0].kind, Timeline::Kind::kOp);
  EXPECT_EQ(timeline.entries()[0].access.ranges().at(0).begin, &buffer);
  EXPECT_EQ(timeline.entries()[2].kind, Timeline::Kind::kRecord);
  EXPECT_EQ(timeline.entries()[3].kind, Timeline::Kind::kWait);
  EXPECT_EQ(timeline.entries()[3].lane, 1);
  EXPECT_EQ(timeline.entries()[3].event, timeline.entries()[2].event);
  EXPECT_EQ(timeline.flops(), 12);
}

TEST(PlanStream, NeedsATimeline) {
  EXPECT_THAT(error_of([] { Stream stream(DeviceType::kPlan, "compute"); }), HasSubstr("timeline"));
}

TEST(Access, SkipsWhatIsAbsentOrEmpty) {
  int buffer = 0;
  Access access("op");
  access.reads(Tensorlike{nullptr, 8});
  access.writes(Tensorlike{&buffer, 0});
  access.reads(Tensorlike{&buffer, 4});
  ASSERT_EQ(access.ranges().size(), 1u);
  EXPECT_FALSE(access.ranges()[0].write);
  EXPECT_EQ(access.ranges()[0].bytes, 4u);
}

}  // namespace
}  // namespace megalith

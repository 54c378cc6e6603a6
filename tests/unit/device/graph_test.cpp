#include "core/device/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <vector>

#include "core/device/capture_guard.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

class GraphTest : public testing::Test {
 protected:
  CaptureGuard guard_;
  Stream compute_{DeviceType::kCpu, "compute", {.captures = &guard_}};
  Stream comm_{DeviceType::kCpu, "comm", {.captures = &guard_}};
};

TEST_F(GraphTest, CaptureRunsNothingAndReplayRunsTheTasksInOrder) {
  Graph graph("layer 0 forward");
  std::vector<int> order;
  graph.begin_capture(compute_);
  EXPECT_TRUE(compute_.capturing());
  EXPECT_TRUE(compute_.wants_access());
  for (int i = 0; i < 5; ++i) enqueue(compute_, [&order, i] { order.push_back(i); });
  graph.end_capture();
  EXPECT_FALSE(compute_.capturing());
  compute_.synchronize();
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(graph.num_ops(), 5);
  EXPECT_EQ(graph.num_replays(), 0);

  graph.replay(compute_);
  graph.replay(compute_);
  enqueue(compute_, [&order] { order.push_back(9); });
  compute_.synchronize();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 9}));
  EXPECT_EQ(graph.num_replays(), 2);
}

TEST_F(GraphTest, ReplayReadsAndWritesTheSameAddresses) {
  Graph graph("add");
  float x = 1;
  float y = 0;
  graph.begin_capture(compute_);
  enqueue(compute_, TestOp{.name = "add", .ranges = {reads(x), writes(y)}, .task = [&] { y += x; }});
  graph.end_capture();
  for (int i = 1; i <= 3; ++i) {
    x = static_cast<float>(i);
    graph.replay(compute_);
    compute_.synchronize();
  }
  EXPECT_EQ(y, 6);
}

TEST_F(GraphTest, CountsTheFlopsOfOneReplay) {
  Graph graph("gemm");
  graph.begin_capture(compute_);
  for (double flops : {3.0, 4.0}) {
    Access access("gemm");
    access.add_flops(flops);
    compute_.announce(access);
    enqueue_unannounced(compute_, [] {});
  }
  graph.end_capture();
  EXPECT_EQ(graph.flops(), 7);
}

TEST_F(GraphTest, AnEmptyGraphIsLegal) {
  Graph graph("nothing");
  graph.begin_capture(compute_);
  graph.end_capture();
  EXPECT_EQ(graph.num_ops(), 0);
  EXPECT_NO_THROW(graph.replay(compute_));
  EXPECT_THAT(error_of([&] { graph.begin_capture(compute_); }), HasSubstr("a captured one"));
}

TEST_F(GraphTest, ForkAndJoinThroughEvents) {
  Graph graph("overlap");
  Event fork("fork");
  Event join("join");
  int value = 1;
  graph.begin_capture(compute_);
  enqueue(compute_, [&] { value += 1; });
  compute_.record(fork);
  comm_.wait(fork);
  EXPECT_TRUE(comm_.capturing());
  enqueue(comm_, [&] { value *= 10; });
  comm_.record(join);
  compute_.wait(join);
  enqueue(compute_, [&] { value += 3; });
  graph.end_capture();
  EXPECT_FALSE(comm_.capturing());
  EXPECT_EQ(value, 1);
  graph.replay(compute_);
  compute_.synchronize();
  EXPECT_EQ(value, 23);
  EXPECT_EQ(graph.num_ops(), 3);
}

TEST_F(GraphTest, AnEventRecordedInAGraphCannotBeWaitedForOutsideUntilRecordedAgain) {
  Graph graph("layer 5");
  Event inside("inside");
  comm_.record(inside);  // an older record must not be taken for the captured one
  graph.begin_capture(compute_);
  compute_.record(inside);
  graph.end_capture();
  const auto refused = AllOf(HasSubstr("inside"), HasSubstr("record_external"));
  EXPECT_THAT(error_of([&] { comm_.wait(inside); }), refused);
  EXPECT_THAT(error_of([&] { comm_.synchronize_host(inside); }), refused);
  graph.replay(compute_);
  EXPECT_THAT(error_of([&] { comm_.wait(inside); }), refused);
  compute_.record(inside);
  EXPECT_EQ(error_of([&] { comm_.wait(inside); }), "");
  EXPECT_EQ(error_of([&] { comm_.synchronize_host(inside); }), "");
}

TEST_F(GraphTest, AnEventMayDieDuringTheCaptureOrBeforeTheReplay) {
  Graph graph("g");
  int value = 0;
  graph.begin_capture(compute_);
  {
    Event fork("fork");
    Event join("join");
    compute_.record(fork);
    comm_.wait(fork);
    enqueue(comm_, [&] { value = 4; });
    comm_.record(join);
    compute_.wait(join);
  }
  graph.end_capture();
  graph.replay(compute_);
  compute_.synchronize();
  EXPECT_EQ(value, 4);
}

TEST_F(GraphTest, AnExternalEventFiresInsideTheReplayWhileTheTailStillRuns) {
  Graph graph("layer 6 backward");
  Event ready("gradient ready");
  Gate tail;
  int gradient = 0;
  graph.begin_capture(compute_);
  enqueue(compute_, [&] { ++gradient; });
  compute_.record_external(ready);
  enqueue(compute_, [&] { tail.pass(); });
  graph.end_capture();
  EXPECT_FALSE(ready.recorded());

  graph.replay(compute_);
  EXPECT_TRUE(ready.recorded());
  int reduced = 0;
  comm_.wait(ready);
  enqueue(comm_, [&] { reduced = gradient; });
  comm_.synchronize();  // returns only if the event fired although the tail is blocked
  EXPECT_EQ(reduced, 1);
  tail.open();
  compute_.synchronize();

  // Each replay fires it anew: a wait after the second one refers to the second.
  Gate head;
  enqueue(compute_, [&] { head.pass(); });
  graph.replay(compute_);
  comm_.wait(ready);
  Gate passed;
  enqueue(comm_, [&] {
    reduced = gradient;
    passed.open();
  });
  EXPECT_FALSE(passed.opens_within(milliseconds(20)));
  head.open();
  comm_.synchronize();
  EXPECT_EQ(reduced, 2);
}

TEST_F(GraphTest, WaitExternalWaitsForTheLatestRecordBeforeEachReplay) {
  Graph graph("layer 7 forward");
  Event unsharded("unsharded");
  int weight = 0;
  int seen = 0;
  graph.begin_capture(compute_);
  compute_.wait_external(unsharded);
  enqueue(compute_, [&] { seen = weight; });
  graph.end_capture();
  for (int step = 1; step <= 3; ++step) {
    Gate gate;
    enqueue(comm_, [&, step] {
      gate.pass();
      weight = step;
    });
    comm_.record(unsharded);
    graph.replay(compute_);
    gate.open();
    compute_.synchronize();
    EXPECT_EQ(seen, step);
  }
}

TEST_F(GraphTest, ExternalEventsNeedACapture) {
  Event event("event");
  EXPECT_THAT(error_of([&] { compute_.record_external(event); }), HasSubstr("outside a capture"));
  EXPECT_THAT(error_of([&] { compute_.wait_external(event); }), HasSubstr("outside a capture"));
}

TEST_F(GraphTest, TheWaitCounterCountsExternalWaits) {
  WaitCounter waits{.suppressed = 0};
  Stream stream(DeviceType::kCpu, "compute", {.waits = &waits});
  Event event("event");
  Gate gate;
  Gate passed;
  enqueue(comm_, [&] { gate.pass(); });
  comm_.record(event);
  Graph graph("g");
  graph.begin_capture(stream);
  stream.wait_external(event);
  enqueue(stream, [&] { passed.open(); });
  graph.end_capture();
  graph.replay(stream);
  EXPECT_TRUE(passed.opens_within(milliseconds(10000))) << "the suppressed wait still blocks";
  EXPECT_EQ(waits.count, 1);
  gate.open();
}

TEST_F(GraphTest, AbortOnAnExceptionLeavesTheStreamsUsable) {
  Graph graph("layer 8");
  Event fork("fork");
  int value = 0;
  try {
    graph.begin_capture(compute_);
    compute_.record(fork);
    comm_.wait(fork);
    enqueue(comm_, [&] { value = 100; });
    throw std::runtime_error("a hook failed");
  } catch (const std::runtime_error&) {
    graph.abort_capture();
  }
  EXPECT_FALSE(compute_.capturing());
  EXPECT_FALSE(comm_.capturing());
  EXPECT_FALSE(guard_.active());
  enqueue(compute_, [&] { ++value; });
  compute_.record(fork);
  comm_.wait(fork);
  enqueue(comm_, [&] { ++value; });
  comm_.synchronize();
  EXPECT_EQ(value, 2);

  graph.begin_capture(compute_);  // and the graph may be captured again
  enqueue(compute_, [&] { value = 7; });
  graph.end_capture();
  graph.abort_capture();  // no capture is under way: changes nothing
  graph.replay(compute_);
  compute_.synchronize();
  EXPECT_EQ(value, 7);
}

TEST_F(GraphTest, AGraphOrAStreamThatDiesDuringCaptureEndsIt) {
  auto graph = std::make_unique<Graph>("short-lived");
  graph->begin_capture(compute_);
  graph.reset();
  EXPECT_FALSE(compute_.capturing());
  EXPECT_FALSE(guard_.active());
  EXPECT_NO_THROW(compute_.synchronize());

  Graph left("left");
  {
    Stream stream(DeviceType::kCpu, "short-lived", {.captures = &guard_});
    left.begin_capture(stream);
  }
  EXPECT_FALSE(guard_.active());
  EXPECT_NO_THROW(left.begin_capture(compute_));
  left.end_capture();
}

TEST_F(GraphTest, AnExceptionInAReplaySurfacesAndTheNextReplayIsClean) {
  Graph graph("g");
  bool broken = true;
  int after = 0;
  Event ready("ready");
  graph.begin_capture(compute_);
  enqueue(compute_, [&] {
    if (broken) throw std::runtime_error("bad batch");
  });
  compute_.record_external(ready);
  enqueue(compute_, [&] { ++after; });
  graph.end_capture();
  graph.replay(compute_);
  EXPECT_EQ(error_of([&] { ready.wait_on_host(); }), "bad batch");
  EXPECT_EQ(error_of([&] { compute_.synchronize(); }), "bad batch");
  EXPECT_EQ(after, 0);
  broken = false;
  graph.replay(compute_);
  EXPECT_NO_THROW(ready.wait_on_host());
  EXPECT_NO_THROW(compute_.synchronize());
  EXPECT_EQ(after, 1);
}

TEST_F(GraphTest, AGraphMayBeDestroyedWhileItsReplayIsPending) {
  Gate gate;
  int value = 0;
  {
    Graph graph("g");
    graph.begin_capture(compute_);
    enqueue(compute_, [&] { gate.pass(); });
    enqueue(compute_, [&] { value = 3; });
    graph.end_capture();
    graph.replay(compute_);
  }
  gate.open();
  compute_.synchronize();
  EXPECT_EQ(value, 3);
}

}  // namespace
}  // namespace megalith

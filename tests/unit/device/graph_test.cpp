#include "core/device/graph.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <vector>

#include "core/device/capture_guard.h"
#include "tests/support/matchers.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

using std::chrono::milliseconds;

class GraphTest : public TwoStreamsTest {};
MEGALITH_BACKEND_TESTS(GraphTest);

// Only tasks on the CPU can throw, or block several streams at once.
class GraphTestOnCpu : public GraphTest {};
INSTANTIATE_TEST_SUITE_P(Backends, GraphTestOnCpu, testing::Values(DeviceType::kCpu), test::name_of_device_case);

TEST_P(GraphTest, CaptureRunsNothingAndReplayRunsTheTasksInOrder) {
  Graph graph("layer 0 forward");
  std::vector<int> order;
  graph.begin_capture(compute());
  EXPECT_TRUE(compute().capturing());
  EXPECT_TRUE(compute().needs_access());
  for (int i = 0; i < 5; ++i) enqueue(compute(), [&order, i] { order.push_back(i); });
  graph.end_capture();
  EXPECT_FALSE(compute().capturing());
  compute().synchronize();
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(graph.num_ops(), 5);
  EXPECT_EQ(graph.num_replays(), 0);
  EXPECT_TRUE(device() == DeviceType::kCuda || graph.device_bytes() == 0);

  graph.replay(compute());
  graph.replay(compute());
  enqueue(compute(), [&order] { order.push_back(9); });
  compute().synchronize();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 9}));
  EXPECT_EQ(graph.num_replays(), 2);
}

TEST_P(GraphTest, ReplayReadsAndWritesTheSameAddresses) {
  Graph graph("add");
  float x = 1;
  float y = 0;
  graph.begin_capture(compute());
  enqueue(compute(), TestOp{.name = "add", .ranges = {reads(x), writes(y)}, .task = [&] { y += x; }});
  graph.end_capture();
  for (int i = 1; i <= 3; ++i) {
    x = static_cast<float>(i);
    graph.replay(compute());
    compute().synchronize();
  }
  EXPECT_EQ(y, 6);
}

TEST_P(GraphTest, CountsTheFlopsOfOneReplay) {
  Graph graph("gemm");
  graph.begin_capture(compute());
  for (double flops : {3.0, 4.0}) {
    Access access("gemm");
    access.set_cost({.flops = flops});
    compute().announce(access);
    enqueue_unannounced(compute(), [] {});
  }
  graph.end_capture();
  EXPECT_EQ(graph.flops(), 7);
}

TEST_P(GraphTest, AnEmptyGraphIsLegal) {
  Graph graph("nothing");
  graph.begin_capture(compute());
  graph.end_capture();
  EXPECT_EQ(graph.num_ops(), 0);
  EXPECT_NO_THROW(graph.replay(compute()));
  EXPECT_THAT(error_of([&] { graph.begin_capture(compute()); }), HasSubstr("a captured one"));
}

TEST_P(GraphTest, DroppedWorkIsNeitherRunNorKept) {
  Event outside("outside"), inside("inside");
  int value = 1;
  Stream* const sides[] = {&comm()};
  comm().record(outside);
  {
    Graph graph("dropped");
    graph.begin_dropped(compute(), sides);
    EXPECT_TRUE(compute().capturing() && comm().capturing());
    enqueue(compute(), [&] { value += 1; });
    compute().record(inside);
    compute().wait(outside);  // outside record: no wait
    enqueue(comm(), [&] { value += 10; });
    EXPECT_EQ(graph.num_ops(), 2);
  }
  {
    Graph graph("dropped too");
    graph.begin_dropped(compute(), sides);
    comm().wait(inside);  // dropped capture: no wait
    EXPECT_THAT(error_of([&] { graph.end_capture(); }), HasSubstr("of what is dropped"));
  }
  EXPECT_FALSE(compute().capturing() || comm().capturing());
  enqueue(comm(), [&] { value *= 2; });
  comm().record(inside);
  compute().wait(inside);
  enqueue(compute(), [&] { value += 3; });
  compute().synchronize();
  EXPECT_EQ(value, 5);
}

TEST_P(GraphTest, ForkAndJoinThroughEvents) {
  Graph graph("overlap");
  Event fork("fork");
  Event join("join");
  int value = 1;
  graph.begin_capture(compute());
  enqueue(compute(), [&] { value += 1; });
  compute().record(fork);
  comm().wait(fork);
  EXPECT_TRUE(comm().capturing());
  enqueue(comm(), [&] { value *= 10; });
  comm().record(join);
  compute().wait(join);
  enqueue(compute(), [&] { value += 3; });
  graph.end_capture();
  EXPECT_FALSE(comm().capturing());
  EXPECT_EQ(value, 1);
  graph.replay(compute());
  compute().synchronize();
  EXPECT_EQ(value, 23);
  EXPECT_EQ(graph.num_ops(), 3);
}

TEST_P(GraphTest, AnEventRecordedInAGraphCannotBeWaitedForOutsideUntilRecordedAgain) {
  Graph graph("layer 5");
  Event inside("inside");
  comm().record(inside);  // an older record is not the captured one
  graph.begin_capture(compute());
  compute().record(inside);
  graph.end_capture();
  const auto refused = AllOf(HasSubstr("inside"), HasSubstr("record_external"));
  EXPECT_THAT(error_of([&] { comm().wait(inside); }), refused);
  EXPECT_THAT(error_of([&] { comm().synchronize_host(inside); }), refused);
  graph.replay(compute());
  EXPECT_THAT(error_of([&] { comm().wait(inside); }), refused);
  compute().record(inside);
  EXPECT_EQ(error_of([&] { comm().wait(inside); }), "");
  EXPECT_EQ(error_of([&] { comm().synchronize_host(inside); }), "");
}

TEST_P(GraphTest, AnEventMayDieDuringTheCaptureOrBeforeTheReplay) {
  Graph graph("g");
  int value = 0;
  graph.begin_capture(compute());
  {
    Event fork("fork");
    Event join("join");
    compute().record(fork);
    comm().wait(fork);
    enqueue(comm(), [&] { value = 4; });
    comm().record(join);
    compute().wait(join);
  }
  graph.end_capture();
  graph.replay(compute());
  compute().synchronize();
  EXPECT_EQ(value, 4);
}

TEST_P(GraphTestOnCpu, AnExternalEventFiresInsideTheReplayWhileTheTailStillRuns) {
  Graph graph("layer 6 backward");
  Event ready("gradient ready");
  Gate tail;
  int gradient = 0;
  graph.begin_capture(compute());
  enqueue(compute(), [&] { ++gradient; });
  compute().record_external(ready);
  enqueue(compute(), [&] { tail.pass(); });
  graph.end_capture();
  EXPECT_FALSE(ready.recorded());

  graph.replay(compute());
  EXPECT_TRUE(ready.recorded());
  int reduced = 0;
  comm().wait(ready);
  enqueue(comm(), [&] { reduced = gradient; });
  comm().synchronize();  // returns only if the event fired although the tail is blocked
  EXPECT_EQ(reduced, 1);
  tail.open();
  compute().synchronize();

  // Each replay fires it again: a wait after the second one refers to the second.
  Gate head;
  enqueue(compute(), [&] { head.pass(); });
  graph.replay(compute());
  comm().wait(ready);
  Gate passed;
  enqueue(comm(), [&] {
    reduced = gradient;
    passed.open();
  });
  EXPECT_FALSE(passed.opens_within(milliseconds(20)));
  head.open();
  comm().synchronize();
  EXPECT_EQ(reduced, 2);
  compute().synchronize();  // its tail passes a gate of this test
}

TEST_P(GraphTest, WaitExternalWaitsForTheLatestRecordBeforeEachReplay) {
  Graph graph("layer 7 forward");
  Event unsharded("unsharded");
  int weight = 0;
  int seen = 0;
  graph.begin_capture(compute());
  compute().wait_external(unsharded);
  enqueue(compute(), [&] { seen = weight; });
  graph.end_capture();
  for (int step = 1; step <= 3; ++step) {
    Gate gate;
    enqueue(comm(), [&, step] {
      gate.pass();
      weight = step;
    });
    comm().record(unsharded);
    graph.replay(compute());
    gate.open();
    compute().synchronize();
    EXPECT_EQ(seen, step);
  }
}

TEST_P(GraphTest, ExternalEventsNeedACapture) {
  Event event("event");
  EXPECT_THAT(error_of([&] { compute().record_external(event); }), HasSubstr("outside a capture"));
  EXPECT_THAT(error_of([&] { compute().wait_external(event); }), HasSubstr("outside a capture"));
}

TEST_P(GraphTest, AbortOnAnExceptionLeavesTheStreamsUsable) {
  Graph graph("layer 8");
  Event fork("fork");
  int value = 0;
  try {
    graph.begin_capture(compute());
    compute().record(fork);
    comm().wait(fork);
    enqueue(comm(), [&] { value = 100; });
    throw std::runtime_error("a hook failed");
  } catch (const std::runtime_error&) {
    graph.abort_capture();
  }
  EXPECT_FALSE(compute().capturing());
  EXPECT_FALSE(comm().capturing());
  EXPECT_FALSE(guard_.active());
  enqueue(compute(), [&] { ++value; });
  compute().record(fork);
  comm().wait(fork);
  enqueue(comm(), [&] { ++value; });
  comm().synchronize();
  EXPECT_EQ(value, 2);

  graph.begin_capture(compute());  // and the graph may be captured again
  enqueue(compute(), [&] { value = 7; });
  graph.end_capture();
  graph.abort_capture();  // without a capture it changes nothing
  graph.replay(compute());
  compute().synchronize();
  EXPECT_EQ(value, 7);
}

// The exception comes from anywhere between the two calls: after nested forks, events, or an announced op.
TEST_P(GraphTest, AfterAnAbortAnyOtherGraphCanBeCaptured) {
  Stream third(device(), "third", {.captures = &guard_});
  Event fork("fork"), second_fork("second fork"), join("join"), in("in"), out("out");
  int value = 0;
  for (int step = 0; step < 5; ++step) {
    Graph broken("broken");
    const auto may_throw = [step](int here) {
      if (step == here) throw std::runtime_error("a hook failed");
    };
    EXPECT_THROW(
        {
          broken.begin_capture(compute());
          may_throw(0);
          compute().record(fork);
          comm().wait(fork);
          may_throw(1);
          comm().record(second_fork);
          third.wait(second_fork);
          enqueue(third, [&] { value = -100; });
          may_throw(2);
          compute().wait_external(in);
          compute().record_external(out);
          may_throw(3);
          compute().announce(access_of({.name = "gemm", .ranges = {writes(value)}}));
          may_throw(4);
        },
        std::runtime_error);
    broken.abort_capture();
    for (Stream* stream : {&compute(), &comm(), &third}) EXPECT_FALSE(stream->capturing());
    EXPECT_FALSE(guard_.active());
    EXPECT_EQ(broken.num_ops(), 0);
    EXPECT_EQ(out.recorded(), step > 0) << "by the replay of an earlier step alone";

    Graph next("next");
    next.begin_capture(compute());
    compute().record(fork);
    comm().wait(fork);
    comm().record(second_fork);
    third.wait(second_fork);
    enqueue(third, [&] { ++value; });
    third.record(join);
    compute().wait(join);
    compute().record_external(out);
    next.end_capture();
    next.replay(compute());
    comm().wait(out);
    int seen = -1;
    enqueue(comm(), [&] { seen = value; });
    comm().synchronize();
    EXPECT_EQ(seen, step + 1);
    compute().synchronize();
  }
}

TEST_P(GraphTest, AGraphOrAStreamThatDiesDuringCaptureEndsIt) {
  auto graph = std::make_unique<Graph>("short-lived");
  graph->begin_capture(compute());
  graph.reset();
  EXPECT_FALSE(compute().capturing());
  EXPECT_FALSE(guard_.active());
  EXPECT_NO_THROW(compute().synchronize());

  Graph left("left");
  {
    Stream stream(device(), "short-lived", {.captures = &guard_});
    left.begin_capture(stream);
  }
  EXPECT_FALSE(guard_.active());
  EXPECT_NO_THROW(left.begin_capture(compute()));
  left.end_capture();
}

TEST_P(GraphTestOnCpu, AnExceptionInAReplaySurfacesAndTheNextReplayIsClean) {
  Graph graph("g");
  bool broken = true;
  int after = 0;
  Event ready("ready");
  graph.begin_capture(compute());
  enqueue(compute(), [&] {
    if (broken) throw std::runtime_error("bad batch");
  });
  compute().record_external(ready);
  enqueue(compute(), [&] { ++after; });
  graph.end_capture();
  graph.replay(compute());
  EXPECT_EQ(error_of([&] { ready.wait_on_host(); }), "bad batch");
  EXPECT_EQ(error_of([&] { compute().synchronize(); }), "bad batch");
  EXPECT_EQ(after, 0);
  broken = false;
  graph.replay(compute());
  EXPECT_NO_THROW(ready.wait_on_host());
  EXPECT_NO_THROW(compute().synchronize());
  EXPECT_EQ(after, 1);
}

TEST_P(GraphTest, AGraphMayBeDestroyedWhileItsReplayIsPending) {
  Gate gate;
  int value = 0;
  {
    Graph graph("g");
    graph.begin_capture(compute());
    enqueue(compute(), [&] { gate.pass(); });
    enqueue(compute(), [&] { value = 3; });
    graph.end_capture();
    graph.replay(compute());
  }
  gate.open();
  compute().synchronize();
  EXPECT_EQ(value, 3);
}

}  // namespace
}  // namespace megalith

// Capture and replay behavior that needs a GPU: events that fire inside a running replay, concurrent branches, and
// calls that break a capture.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/device/capture_guard.h"
#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "tests/support/matchers.h"
#include "tests/unit/device/cuda_test.h"

namespace megalith {
namespace {

class CudaGraphTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    compute_ = std::make_unique<Stream>(DeviceType::kCuda, "compute", Instruments{.captures = &guard_});
    comm_ = std::make_unique<Stream>(DeviceType::kCuda, "comm", Instruments{.captures = &guard_});
  }
  Stream& compute() { return *compute_; }
  Stream& comm() { return *comm_; }

  CaptureGuard guard_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> comm_;
};

TEST_F(CudaGraphTest, AnExternalEventFiresInsideTheReplayWhileTheTailStillRuns) {
  Graph graph("layer 6 backward");
  Event ready("gradient ready");
  int* gradient = flags(1);
  int* reduced = flags(1);
  int* tail = flags(1);
  int* head = flags(1);
  graph.begin_capture(compute());
  op(compute(), "gradient", gradient, [&](Stream& s) { add(s, gradient, 1); });
  compute().record_external(ready);
  op(compute(), "tail", nullptr, [&](Stream& s) { spin(s, tail, 1); });
  graph.end_capture();
  EXPECT_FALSE(ready.recorded());
  EXPECT_EQ(graph.num_ops(), 2);
  EXPECT_EQ(graph.num_nodes(), 3u);

  graph.replay(compute());
  EXPECT_TRUE(ready.recorded());
  comm().wait(ready);
  copy_by_kernel(comm(), reduced, gradient);
  comm().synchronize();  // returns only if the event fired although the tail spins
  EXPECT_EQ(read_flag(reduced), 1);
  write_flag(tail, 1);
  compute().synchronize();
  EXPECT_LT(seconds(), 5);

  // Each replay fires it again: a wait after the second one refers to the second.
  spin(compute(), head, 1);
  graph.replay(compute());
  comm().wait(ready);
  copy_by_kernel(comm(), reduced, gradient);
  EXPECT_EQ(read_flag(reduced), 1);
  write_flag(head, 1);
  comm().synchronize();
  EXPECT_EQ(read_flag(reduced), 2);
}

TEST_F(CudaGraphTest, WaitExternalWaitsForTheLatestRecordBeforeEachReplay) {
  Graph graph("layer 7 forward");
  Event unsharded("unsharded");
  int* weight = flags(1);
  int* seen = flags(1);
  int* gate = flags(1);
  graph.begin_capture(compute());
  compute().wait_external(unsharded);
  op(compute(), "read", seen, [&](Stream& s) { copy_by_kernel(s, seen, weight); });
  graph.end_capture();
  graph.replay(compute());  // nothing recorded yet
  compute().synchronize();
  for (int step = 1; step <= 3; ++step) {
    spin(comm(), gate, step);
    add(comm(), weight, 1);
    comm().record(unsharded);
    graph.replay(compute());
    EXPECT_EQ(read_flag(seen), step - 1);
    write_flag(gate, step);
    compute().synchronize();
    EXPECT_EQ(read_flag(seen), step);
  }
  EXPECT_LT(seconds(), 5);
}

// The path of a gradient bucket: a side stream starts in the middle of the replay. It rejoins the compute stream by an
// event that the next graph waits for.
TEST_F(CudaGraphTest, AReplayOnASideStreamRejoinsThroughAnExternalEvent) {
  Graph backward("backward");
  Graph reduce("reduce");
  Graph step("step");
  Event ready("gradient ready");
  Event reduced("reduced");
  int* gradient = flags(1);
  int* bucket = flags(1);
  int* weight = flags(1);
  backward.begin_capture(compute());
  op(compute(), "backward", gradient, [&](Stream& s) { add(s, gradient, 1); });
  compute().record_external(ready);
  backward.end_capture();
  reduce.begin_capture(comm());
  comm().wait_external(ready);
  op(comm(), "reduce", bucket, [&](Stream& s) { copy_by_kernel(s, bucket, gradient); });
  comm().record_external(reduced);
  reduce.end_capture();
  step.begin_capture(compute());
  compute().wait_external(reduced);
  op(compute(), "step", weight, [&](Stream& s) { copy_by_kernel(s, weight, bucket); });
  step.end_capture();
  for (int i = 1; i <= 20; ++i) {
    backward.replay(compute());
    reduce.replay(comm());
    step.replay(compute());
    compute().synchronize();
    ASSERT_EQ(read_flag(weight), i);
  }
}

TEST_F(CudaGraphTest, BranchesOfAGraphRunAtTheSameTime) {
  Graph graph("overlap");
  Event fork("fork");
  Event join("join");
  int* a = flags(1);
  int* b = flags(1);
  graph.begin_capture(compute());
  compute().record(fork);
  comm().wait(fork);
  op(comm(), "a", a, [&](Stream& s) { signal(s, a, 1); });
  op(comm(), "wait for b", nullptr, [&](Stream& s) { spin(s, b, 1); });
  comm().record(join);
  op(compute(), "wait for a", nullptr, [&](Stream& s) { spin(s, a, 1); });
  op(compute(), "b", b, [&](Stream& s) { signal(s, b, 1); });
  compute().wait(join);
  graph.end_capture();
  graph.replay(compute());
  compute().synchronize();
  EXPECT_LT(seconds(), 5) << "one branch waited for the other's end";
}

TEST_F(CudaGraphTest, AnOpMayLaunchSeveralKernelsButNotNoneAndNoneMayComeUnannounced) {
  int* x = flags(1);
  Graph several("several");
  several.begin_capture(compute());
  op(compute(), "two kernels", x, [&](Stream& s) {
    add(s, x, 1);
    add(s, x, 2);
  });
  op(compute(), "one", x, [&](Stream& s) { add(s, x, 4); });
  several.end_capture();
  EXPECT_EQ(several.num_ops(), 2);
  EXPECT_EQ(several.num_nodes(), 3u);
  several.replay(compute());
  compute().synchronize();
  EXPECT_EQ(read_flag(x), 7);

  Graph forgets("forgets");
  forgets.begin_capture(compute());
  op(compute(), "forgotten", x, [](Stream&) {});
  EXPECT_THAT(error_of([&] { op(compute(), "next", x, [&](Stream& s) { add(s, x, 1); }); }),
              AllOf(HasSubstr("graph forgets"), HasSubstr("op forgotten")));
  forgets.abort_capture();

  Graph last("last");
  last.begin_capture(compute());
  op(compute(), "last op", x, [](Stream&) {});
  EXPECT_THAT(error_of([&] { last.end_capture(); }), HasSubstr("op last op"));

  Graph sneaks("sneaks");
  sneaks.begin_capture(compute());
  op(compute(), "rope", x, [&](Stream& s) { add(s, x, 1); });
  Event event("event");
  compute().record(event);
  add(compute(), x, 1);
  EXPECT_THAT(error_of([&] { sneaks.end_capture(); }), AllOf(HasSubstr("graph sneaks"), HasSubstr("after op rope")));
  add(compute(), x, 1);
  compute().synchronize();
  EXPECT_EQ(read_flag(x), 8);
}

// CUDA itself rejects allocations meanwhile and ends the capture; our message reports it, and all is usable afterwards.
TEST_F(CudaGraphTest, WhatCudaForbidsDuringCaptureIsAnErrorAndLeavesTheStreamsUsable) {
  int* x = flags(1);
  Graph graph("layer 9");
  Event fork("fork");
  graph.begin_capture(compute());
  compute().record(fork);
  comm().wait(fork);
  op(comm(), "on comm", x, [&](Stream& s) { add(s, x, 1); });
  EXPECT_THAT(error_of([] { test::allocate_and_free(); }),
              AllOf(HasSubstr("cudaMalloc"), HasSubstr("cudaErrorStreamCapture")));
  const std::string message = error_of([&] {
    op(compute(), "after", x, [&](Stream& s) { add(s, x, 1); });
    graph.end_capture();
  });
  EXPECT_THAT(message, HasSubstr("apture"));
  graph.abort_capture();
  EXPECT_FALSE(compute().capturing());
  EXPECT_FALSE(comm().capturing());
  EXPECT_FALSE(guard_.active());
  add(compute(), x, 1);
  compute().record(fork);
  comm().wait(fork);
  add(comm(), x, 1);
  comm().synchronize();
  EXPECT_EQ(read_flag(x), 2);
  graph.begin_capture(compute());
  op(compute(), "again", x, [&](Stream& s) { add(s, x, 1); });
  graph.end_capture();
  graph.replay(compute());
  compute().synchronize();
  EXPECT_EQ(read_flag(x), 3);
}

TEST_F(CudaGraphTest, AfterABrokenCaptureAnotherGraphCanBeCaptured) {
  int* x = flags(1);
  Event fork("fork"), join("join"), done("done");
  const auto capture = [&](Graph& graph, const std::function<void()>& in_the_middle) {
    graph.begin_capture(compute());
    compute().record(fork);
    comm().wait(fork);
    op(comm(), "on comm", x, [&](Stream& s) { add(s, x, 1); });
    compute().record_external(done);
    in_the_middle();
    comm().record(join);
    compute().wait(join);
    op(compute(), "after", x, [&](Stream& s) { add(s, x, 1); });
    compute().record_external(done);
    graph.end_capture();
  };
  const std::vector<std::function<void()>> failures = {[] { test::allocate_and_free(); },
                                                       [&] { bad_launch(compute()); },
                                                       [] { throw std::runtime_error("a hook failed"); }};
  int expected = 0;
  for (const std::function<void()>& failure : failures) {
    Graph broken("broken");
    EXPECT_NE(error_of([&] { capture(broken, failure); }), "");
    broken.abort_capture();
    EXPECT_FALSE(compute().capturing());
    EXPECT_FALSE(comm().capturing());
    EXPECT_FALSE(guard_.active());
    EXPECT_EQ(broken.num_nodes(), 0u);
    EXPECT_EQ(broken.device_bytes(), 0u);
    Graph next("next");
    capture(next, [] {});
    next.replay(compute());
    comm().wait(done);
    add(comm(), x, 1);
    comm().synchronize();
    compute().synchronize();
    EXPECT_EQ(read_flag(x), expected += 3);
  }
}

TEST_F(CudaGraphTest, ReportsTheMemoryThatTheDriverTook) {
  int* x = flags(1);
  std::vector<std::unique_ptr<Graph>> graphs;
  std::size_t bytes = 0;
  for (int g = 0; g < 8; ++g) {
    Graph& graph = *graphs.emplace_back(std::make_unique<Graph>("five hundred"));
    graph.begin_capture(compute());
    for (int i = 0; i < 500; ++i) op(compute(), "add", x, [&](Stream& s) { add(s, x, 1); });
    graph.end_capture();
    bytes += graph.device_bytes();
  }
  EXPECT_GT(bytes, 0u);
  EXPECT_LT(bytes, std::size_t{1} << 30);
}

TEST_F(CudaGraphTest, TheHazardCheckerSeesKernelsAndReplays) {
  HazardChecker checker;
  Stream a(DeviceType::kCuda, "a", {.hazards = &checker});
  Stream b(DeviceType::kCuda, "b", {.hazards = &checker});
  int* x = flags(1);
  Event done("done");
  Graph graph("write x");
  graph.begin_capture(a);
  op(a, "write", x, [&](Stream& s) { add(s, x, 1); });
  a.record_external(done);
  graph.end_capture();
  graph.replay(a);
  b.wait(done);
  op(b, "ordered", x, [&](Stream& s) { add(s, x, 1); });
  b.synchronize();
  EXPECT_EQ(checker.count(), 0);
  graph.replay(a);  // after b's op, since the host waited for b
  EXPECT_EQ(checker.count(), 0);
  op(b, "not ordered", x, [&](Stream& s) { add(s, x, 1); });
  ASSERT_EQ(checker.count(), 1);
  EXPECT_EQ(checker.hazards()[0].first_op, "write");
  EXPECT_EQ(checker.hazards()[0].second_op, "not ordered");
  graph.replay(a);
  ASSERT_EQ(checker.count(), 2);
  EXPECT_EQ(checker.hazards()[1].first_op, "not ordered");
  EXPECT_EQ(checker.hazards()[1].second_op, "write");
  a.synchronize();
  b.synchronize();
}

TEST_F(CudaGraphTest, AReplayHasTheBitsOfTheEagerRunManyTimes) {
  int* x = flags(1);
  Graph graph("thousand");
  graph.begin_capture(compute());
  for (int i = 0; i < 1000; ++i) op(compute(), "add", x, [&](Stream& s) { add(s, x, 1); });
  graph.end_capture();
  EXPECT_EQ(graph.num_nodes(), 1000u);
  for (int i = 0; i < 5; ++i) graph.replay(compute());
  compute().synchronize();
  EXPECT_EQ(read_flag(x), 5000);
}

}  // namespace
}  // namespace megalith

// What is illegal in a capture, and what the error says.
#include "core/device/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/device/arena.h"
#include "core/device/capture_guard.h"
#include "core/device/timeline.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CaptureRules : public testing::Test {
 protected:
  CaptureGuard guard_;
  Stream compute_{DeviceType::kCpu, "compute", {.captures = &guard_}};
  Stream comm_{DeviceType::kCpu, "comm", {.captures = &guard_}};
};

TEST_F(CaptureRules, BlockingTheHostDuringCaptureIsAnErrorThatNamesTheOp) {
  Graph graph("layer 3 backward");
  Event event("loss ready");
  float loss = 0;
  comm_.record(event);
  graph.begin_capture(compute_);
  enqueue(compute_, TestOp{.name = "cross_entropy", .ranges = {writes(loss)}});
  const auto where = AllOf(HasSubstr("layer 3 backward"), HasSubstr("cross_entropy"));
  EXPECT_THAT(error_of([&] { compute_.synchronize(); }), AllOf(where, HasSubstr("synchronize"), HasSubstr("compute")));
  EXPECT_THAT(error_of([&] { compute_.synchronize_host(event); }), AllOf(where, HasSubstr("loss ready")));
  EXPECT_THAT(error_of([&] { compute_.announce_host(access_of({.name = "read loss", .ranges = {reads(loss)}})); }),
              AllOf(where, HasSubstr("read loss")));
  // A stream that does not capture: what the host would wait for or read cannot hold what the capture produces.
  EXPECT_THAT(error_of([&] { comm_.synchronize(); }), AllOf(where, HasSubstr("comm")));
  EXPECT_THAT(error_of([&] { comm_.synchronize_host(event); }), where);
  EXPECT_THAT(error_of([&] { comm_.announce_host(access_of({.name = "read loss", .ranges = {reads(loss)}})); }), where);
  graph.end_capture();
  EXPECT_NO_THROW(comm_.synchronize_host(event));
  EXPECT_NO_THROW(compute_.synchronize());
}

TEST(CaptureRulesAlone, WithoutAGuardTheCapturingStreamItselfStillRefuses) {
  Stream stream(DeviceType::kCpu, "compute");
  Graph graph("g");
  graph.begin_capture(stream);
  EXPECT_THAT(error_of([&] { stream.synchronize(); }), HasSubstr("capture of graph g"));
  graph.end_capture();
}

TEST_F(CaptureRules, AllocatingFromTheSystemDuringCaptureIsAnErrorThatNamesTheOwner) {
  MemoryPool pool(DeviceType::kCpu);
  pool.set_capture_guard(&guard_);
  Arena arena(pool, Arena::Mode::kUnplanned);
  void* cached = pool.allocate(4096, MemoryCategory::kWorkspace, "warm-up");
  pool.free(cached);

  Graph graph("layer 1 forward");
  graph.begin_capture(compute_);
  enqueue(compute_, TestOp{.name = "gemm"});
  const auto where = AllOf(HasSubstr("layer 1 forward"), HasSubstr("gemm"));
  EXPECT_THAT(error_of([&] { pool.allocate(1 << 20, MemoryCategory::kWorkspace, "gemm scratch"); }),
              AllOf(where, HasSubstr("gemm scratch")));
  EXPECT_THAT(error_of([&] { arena.allocate(64, MemoryCategory::kActivations, "q"); }),
              AllOf(where, HasSubstr("for q")));
  EXPECT_EQ(pool.allocate(4096, MemoryCategory::kWorkspace, "cached"), cached);  // no call to the system
  graph.end_capture();
  EXPECT_NE(pool.allocate(1 << 20, MemoryCategory::kWorkspace, "gemm scratch"), nullptr);
  EXPECT_NE(arena.allocate(64, MemoryCategory::kActivations, "q"), nullptr);
}

TEST_F(CaptureRules, APlannedArenaMayAllocateDuringCapture) {
  MemoryPool pool(DeviceType::kCpu);
  pool.set_capture_guard(&guard_);
  ArenaPlan plan;
  plan.slots[{}] = {.offset = 0, .bytes = 256};
  plan.peak_bytes = 256;
  Arena arena(pool, Arena::Mode::kPlanned);
  arena.use(plan);
  Graph graph("g");
  graph.begin_capture(compute_);
  arena.begin_scope({});
  EXPECT_NE(arena.allocate(100, MemoryCategory::kActivations, "x"), nullptr);
  graph.end_capture();
}

TEST_F(CaptureRules, AForkThatIsNotJoinedIsAnErrorAndFreesTheStreams) {
  for (const bool joined_too_early : {false, true}) {
    Graph graph("layer 2");
    Event fork("fork");
    Event join("join");
    graph.begin_capture(compute_);
    compute_.record(fork);
    comm_.wait(fork);
    if (joined_too_early) {
      comm_.record(join);
      compute_.wait(join);
    }
    enqueue(comm_, TestOp{.name = "late"});
    EXPECT_THAT(error_of([&] { graph.end_capture(); }),
                AllOf(HasSubstr("layer 2"), HasSubstr("stream comm was forked")));
    EXPECT_FALSE(compute_.capturing());
    EXPECT_FALSE(comm_.capturing());
    EXPECT_FALSE(guard_.active());
    EXPECT_EQ(graph.num_ops(), 0);
    bool ran = false;
    enqueue(comm_, [&] { ran = true; });
    comm_.synchronize();
    EXPECT_TRUE(ran);
    EXPECT_THAT(error_of([&] { graph.replay(compute_); }), HasSubstr("an empty one"));
  }
}

TEST_F(CaptureRules, AJoinThroughAThirdStreamCounts) {
  Stream third(DeviceType::kCpu, "third");
  Graph graph("chain");
  Event a("a");
  Event b("b");
  Event c("c");
  graph.begin_capture(compute_);
  compute_.record(a);
  comm_.wait(a);
  comm_.record(b);
  third.wait(b);
  third.record(c);
  compute_.wait(c);
  EXPECT_NO_THROW(graph.end_capture());
}

TEST_F(CaptureRules, WaitingForAnEventRecordedOutsideIsAnError) {
  Graph graph("layer 4");
  Event outside("weights ready");
  Event never("never recorded");
  comm_.record(outside);
  graph.begin_capture(compute_);
  EXPECT_THAT(error_of([&] { compute_.wait(outside); }),
              AllOf(HasSubstr("layer 4"), HasSubstr("weights ready"), HasSubstr("wait_external")));
  EXPECT_THAT(error_of([&] { compute_.wait(never); }), HasSubstr("never recorded"));
  // Recorded inside first and then outside: the latest record is outside.
  Event moved("moved");
  compute_.record(moved);
  comm_.record(moved);
  EXPECT_THAT(error_of([&] { compute_.wait(moved); }), HasSubstr("moved"));
  graph.abort_capture();
}

TEST_F(CaptureRules, NestedCapturesAndReplaysAreRefused) {
  Graph outer("outer");
  Graph inner("inner");
  Graph done("done");
  done.begin_capture(comm_);
  done.end_capture();
  outer.begin_capture(compute_);
  EXPECT_THAT(error_of([&] { inner.begin_capture(compute_); }), AllOf(HasSubstr("inner"), HasSubstr("outer")));
  EXPECT_THAT(error_of([&] { outer.begin_capture(comm_); }), HasSubstr("being captured"));
  EXPECT_THAT(error_of([&] { done.replay(compute_); }), AllOf(HasSubstr("done"), HasSubstr("capture of graph outer")));
  EXPECT_THAT(error_of([&] { outer.replay(comm_); }), HasSubstr("being captured"));
  EXPECT_TRUE(compute_.capturing());
  EXPECT_NO_THROW(outer.end_capture());
  EXPECT_NO_THROW(inner.begin_capture(compute_));
}

TEST_F(CaptureRules, AStreamInAnotherCaptureCannotJoin) {
  Graph a("a");
  Graph b("b");
  Event event("event of a");
  a.begin_capture(compute_);
  b.begin_capture(comm_);
  compute_.record(event);
  EXPECT_THAT(error_of([&] { comm_.wait(event); }), AllOf(HasSubstr("graph b"), HasSubstr("event of a")));
  a.end_capture();
  EXPECT_TRUE(guard_.active());  // b still captures
  b.end_capture();
  EXPECT_FALSE(guard_.active());
}

TEST_F(CaptureRules, EveryAnnouncedOpNeedsItsTaskAndEveryTaskItsOp) {
  float x = 0;
  Graph graph("g");
  graph.begin_capture(compute_);
  EXPECT_THAT(error_of([&] { enqueue_unannounced(compute_, [] {}); }), AllOf(HasSubstr("graph g"), HasSubstr("no op")));
  enqueue(compute_, TestOp{.name = "rope"});
  EXPECT_THAT(error_of([&] { enqueue_unannounced(compute_, [] {}); }), HasSubstr("a second task after op rope"));
  compute_.announce(access_of({.name = "forgotten", .ranges = {writes(x)}}));
  EXPECT_THAT(error_of([&] { compute_.announce(access_of({.name = "next"})); }), HasSubstr("op forgotten"));
  graph.abort_capture();

  graph.begin_capture(compute_);
  compute_.announce(access_of({.name = "last", .ranges = {writes(x)}}));
  EXPECT_THAT(error_of([&] { graph.end_capture(); }), HasSubstr("op last"));
  EXPECT_FALSE(compute_.capturing());
}

TEST_F(CaptureRules, AnOpWithNothingToWriteNeedsNoTask) {
  float x = 0;
  int count = 0;
  Graph graph("zero rows");
  graph.begin_capture(compute_);
  compute_.announce(access_of({.name = "no rows", .ranges = {reads(x)}}));
  enqueue(compute_, [&] { ++count; });
  compute_.announce(access_of({.name = "no rows", .ranges = {reads(x)}}));
  graph.end_capture();
  graph.replay(compute_);
  EXPECT_NO_THROW(compute_.synchronize());
  EXPECT_EQ(count, 1);
}

TEST(CaptureRulesAlone, CannotCaptureAPlanStream) {
  Timeline timeline;
  Stream stream(DeviceType::kPlan, "compute", {.timeline = &timeline});
  Graph graph("g");
  EXPECT_THAT(error_of([&] { graph.begin_capture(stream); }), HasSubstr("plan stream"));
}

}  // namespace
}  // namespace megalith

// Illegal calls in a capture, and their errors.
#include "core/device/graph.h"

#include <gtest/gtest.h>

#include "core/device/capture_guard.h"
#include "core/instruments/timeline.h"
#include "core/memory/arena.h"
#include "tests/support/matchers.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

class CaptureRules : public TwoStreamsTest {};
MEGALITH_BACKEND_TESTS(CaptureRules);

// Only tasks on the CPU can throw, or block several streams at once.
class CaptureRulesOnCpu : public CaptureRules {};
INSTANTIATE_TEST_SUITE_P(Backends, CaptureRulesOnCpu, testing::Values(DeviceType::kCpu), test::name_of_device_case);

TEST_P(CaptureRules, BlockingTheHostDuringCaptureIsAnErrorThatNamesTheOp) {
  Graph graph("layer 3 backward");
  Event event("loss ready");
  float loss = 0;
  comm().record(event);
  graph.begin_capture(compute());
  enqueue(compute(), TestOp{.name = "cross_entropy", .ranges = {writes(loss)}});
  const auto where = AllOf(HasSubstr("layer 3 backward"), HasSubstr("cross_entropy"));
  EXPECT_THAT(error_of([&] { compute().synchronize(); }), AllOf(where, HasSubstr("synchronize"), HasSubstr("compute")));
  EXPECT_THAT(error_of([&] { compute().synchronize_host(event); }), AllOf(where, HasSubstr("loss ready")));
  EXPECT_THAT(error_of([&] { compute().announce_host(access_of({.name = "read loss", .ranges = {reads(loss)}})); }),
              AllOf(where, HasSubstr("read loss")));
  // A stream outside the capture: the host cannot wait for or read results of the capture.
  EXPECT_THAT(error_of([&] { comm().synchronize(); }), AllOf(where, HasSubstr("comm")));
  EXPECT_THAT(error_of([&] { comm().synchronize_host(event); }), where);
  EXPECT_THAT(error_of([&] { comm().announce_host(access_of({.name = "read loss", .ranges = {reads(loss)}})); }),
              where);
  graph.end_capture();
  EXPECT_NO_THROW(comm().synchronize_host(event));
  EXPECT_NO_THROW(compute().synchronize());
}

TEST_P(CaptureRules, WithoutAGuardTheCapturingStreamItselfStillRefuses) {
  Stream stream(device(), "compute");
  Graph graph("g");
  graph.begin_capture(stream);
  EXPECT_THAT(error_of([&] { stream.synchronize(); }), HasSubstr("capture of graph g"));
  graph.end_capture();
}

TEST_P(CaptureRules, AllocatingFromTheSystemDuringCaptureIsAnErrorThatNamesTheOwner) {
  MemoryPool pool(device());
  pool.set_capture_guard(&guard_);
  Arena arena(pool, Arena::Mode::kUnplanned);
  void* cached = pool.allocate(4096, MemoryCategory::kWorkspace, "warm-up");
  pool.free(cached);

  Graph graph("layer 1 forward");
  graph.begin_capture(compute());
  enqueue(compute(), TestOp{.name = "gemm"});
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

TEST_P(CaptureRules, APlannedArenaMayAllocateDuringCapture) {
  MemoryPool pool(device());
  pool.set_capture_guard(&guard_);
  ArenaPlan plan;
  plan.slots[{}] = {.offset = 0, .bytes = 256};
  plan.peak_bytes = 256;
  Arena arena(pool, Arena::Mode::kPlanned);
  arena.use(plan);
  Graph graph("g");
  graph.begin_capture(compute());
  arena.begin_scope({});
  EXPECT_NE(arena.allocate(100, MemoryCategory::kActivations, "x"), nullptr);
  graph.end_capture();
}

TEST_P(CaptureRules, AForkThatIsNotJoinedIsAnErrorAndFreesTheStreams) {
  for (const bool joined_too_early : {false, true}) {
    Graph graph("layer 2");
    Event fork("fork");
    Event join("join");
    graph.begin_capture(compute());
    compute().record(fork);
    comm().wait(fork);
    if (joined_too_early) {
      comm().record(join);
      compute().wait(join);
    }
    enqueue(comm(), TestOp{.name = "late"});
    EXPECT_THAT(error_of([&] { graph.end_capture(); }),
                AllOf(HasSubstr("layer 2"), HasSubstr("stream comm was forked")));
    EXPECT_FALSE(compute().capturing());
    EXPECT_FALSE(comm().capturing());
    EXPECT_FALSE(guard_.active());
    EXPECT_EQ(graph.num_ops(), 0);
    bool ran = false;
    enqueue(comm(), [&] { ran = true; });
    comm().synchronize();
    EXPECT_TRUE(ran);
    EXPECT_THAT(error_of([&] { graph.replay(compute()); }), HasSubstr("an empty one"));
  }
}

TEST_P(CaptureRules, AJoinThroughAThirdStreamCounts) {
  Stream third(device(), "third");
  int count = 0;
  Graph graph("chain");
  Event a("a");
  Event b("b");
  Event c("c");
  graph.begin_capture(compute());
  compute().record(a);
  comm().wait(a);
  enqueue(comm(), [&] { ++count; });
  comm().record(b);
  third.wait(b);
  enqueue(third, [&] { ++count; });
  third.record(c);
  compute().wait(c);
  graph.end_capture();
  for (Stream* stream : {&compute(), &comm(), &third}) EXPECT_FALSE(stream->capturing()) << stream->name();
  EXPECT_EQ(count, 0);
  graph.replay(compute());
  compute().synchronize();
  EXPECT_EQ(count, 2);
}

TEST_P(CaptureRules, WaitingForAnEventRecordedOutsideIsAnError) {
  Graph graph("layer 4");
  Event outside("weights ready");
  Event never("never recorded");
  comm().record(outside);
  graph.begin_capture(compute());
  EXPECT_THAT(error_of([&] { compute().wait(outside); }),
              AllOf(HasSubstr("layer 4"), HasSubstr("weights ready"), HasSubstr("wait_external")));
  EXPECT_THAT(error_of([&] { compute().wait(never); }), HasSubstr("never recorded"));
  // Recorded inside first and then outside: the latest record is outside.
  Event moved("moved");
  compute().record(moved);
  comm().record(moved);
  EXPECT_THAT(error_of([&] { compute().wait(moved); }), HasSubstr("moved"));
  graph.abort_capture();
}

TEST_P(CaptureRules, NestedCapturesAndReplaysAreRefused) {
  Graph outer("outer");
  Graph inner("inner");
  Graph done("done");
  done.begin_capture(comm());
  done.end_capture();
  outer.begin_capture(compute());
  EXPECT_THAT(error_of([&] { inner.begin_capture(compute()); }), AllOf(HasSubstr("inner"), HasSubstr("outer")));
  EXPECT_THAT(error_of([&] { outer.begin_capture(comm()); }), HasSubstr("being captured"));
  EXPECT_THAT(error_of([&] { done.replay(compute()); }), AllOf(HasSubstr("done"), HasSubstr("capture of graph outer")));
  EXPECT_THAT(error_of([&] { outer.replay(comm()); }), HasSubstr("being captured"));
  EXPECT_TRUE(compute().capturing());
  EXPECT_NO_THROW(outer.end_capture());
  EXPECT_NO_THROW(inner.begin_capture(compute()));
}

TEST_P(CaptureRules, AStreamInAnotherCaptureCannotJoin) {
  Graph a("a");
  Graph b("b");
  Event event("event of a");
  a.begin_capture(compute());
  b.begin_capture(comm());
  compute().record(event);
  EXPECT_THAT(error_of([&] { comm().wait(event); }), AllOf(HasSubstr("graph b"), HasSubstr("event of a")));
  a.end_capture();
  EXPECT_TRUE(guard_.active());  // b still captures
  b.end_capture();
  EXPECT_FALSE(guard_.active());
}

TEST_P(CaptureRulesOnCpu, EveryAnnouncedOpNeedsItsTaskAndEveryTaskItsOp) {
  float x = 0;
  Graph graph("g");
  graph.begin_capture(compute());
  EXPECT_THAT(error_of([&] { enqueue_unannounced(compute(), [] {}); }),
              AllOf(HasSubstr("graph g"), HasSubstr("no op")));
  enqueue(compute(), TestOp{.name = "rope"});
  EXPECT_THAT(error_of([&] { enqueue_unannounced(compute(), [] {}); }), HasSubstr("a second task after op rope"));
  compute().announce(access_of({.name = "forgotten", .ranges = {writes(x)}}));
  EXPECT_THAT(error_of([&] { compute().announce(access_of({.name = "next"})); }), HasSubstr("op forgotten"));
  graph.abort_capture();

  graph.begin_capture(compute());
  compute().announce(access_of({.name = "last", .ranges = {writes(x)}}));
  EXPECT_THAT(error_of([&] { graph.end_capture(); }), HasSubstr("op last"));
  EXPECT_FALSE(compute().capturing());
}

TEST_P(CaptureRules, AnOpWithNothingToWriteNeedsNoTask) {
  float x = 0;
  int count = 0;
  Graph graph("zero rows");
  graph.begin_capture(compute());
  compute().announce(access_of({.name = "no rows", .ranges = {reads(x)}}));
  enqueue(compute(), [&] { ++count; });
  compute().announce(access_of({.name = "no rows", .ranges = {reads(x)}}));
  graph.end_capture();
  graph.replay(compute());
  EXPECT_NO_THROW(compute().synchronize());
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

#include "core/instruments/hazard_checker.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/device/graph.h"
#include "core/memory/memory_pool.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

class HazardTest : public BackendTest {
 protected:
  void start() override {
    compute_ = std::make_unique<Stream>(device(), "compute", Instruments{.hazards = &checker_});
    comm_ = std::make_unique<Stream>(device(), "comm", Instruments{.hazards = &checker_});
    copy_ = std::make_unique<Stream>(device(), "copy", Instruments{.hazards = &checker_});
  }
  Stream& compute() { return *compute_; }
  Stream& comm() { return *comm_; }
  Stream& copy() { return *copy_; }

  AccessRange read(std::size_t begin, std::size_t bytes) const { return {memory_.data() + begin, bytes, false}; }
  AccessRange write(std::size_t begin, std::size_t bytes) const { return {memory_.data() + begin, bytes, true}; }
  static void op(Stream& stream, const char* name, std::vector<AccessRange> ranges) {
    enqueue(stream, TestOp{.name = name, .ranges = std::move(ranges)});
  }
  // "kind: first -> second" of each hazard.
  std::vector<std::string> found() const {
    std::vector<std::string> list;
    for (const Hazard& h : checker_.hazards()) list.push_back(h.kind + ": " + h.first_op + " -> " + h.second_op);
    return list;
  }

  std::array<std::byte, 4096> memory_{};
  HazardChecker checker_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> comm_;
  std::unique_ptr<Stream> copy_;
};
MEGALITH_BACKEND_TESTS(HazardTest);

// Only tasks on the CPU can throw, or block several streams at once.
class HazardTestOnCpu : public HazardTest {};
INSTANTIATE_TEST_SUITE_P(Backends, HazardTestOnCpu, testing::Values(DeviceType::kCpu), test::name_of_device_case);

using Strings = std::vector<std::string>;

TEST_P(HazardTest, OneStreamIsAlwaysInOrder) {
  for (int i = 0; i < 3; ++i) {
    op(compute(), "a", {write(0, 64), read(64, 64)});
    op(compute(), "b", {read(0, 64), write(64, 64), read(64, 64)});
  }
  EXPECT_EQ(checker_.count(), 0);
}

TEST_P(HazardTest, FindsEachKindOfConflict) {
  op(compute(), "w", {write(0, 64)});
  op(comm(), "r", {read(0, 64)});
  EXPECT_EQ(found(), (Strings{"read after write: w -> r"}));
  op(copy(), "w2", {write(0, 64)});
  EXPECT_EQ(found(), (Strings{"read after write: w -> r", "write after write: w -> w2", "write after read: r -> w2"}));
  const Hazard& hazard = checker_.hazards()[0];
  EXPECT_EQ(hazard.first_lane, "compute");
  EXPECT_EQ(hazard.second_lane, "comm");
  EXPECT_EQ(hazard.begin, memory_.data());
  EXPECT_EQ(hazard.bytes, 64u);
  EXPECT_THAT(to_string(hazard),
              AllOf(HasSubstr("r on comm is not ordered after w on compute"), HasSubstr("64 bytes")));
}

TEST_P(HazardTest, TwoReadsAreNoConflict) {
  op(compute(), "r1", {read(0, 64)});
  op(comm(), "r2", {read(0, 64)});
  EXPECT_EQ(checker_.count(), 0);
}

TEST_P(HazardTest, AnEventOrdersAndOnlyInItsDirection) {
  Event done("done");
  op(compute(), "w", {write(0, 64)});
  compute().record(done);
  op(compute(), "w late", {write(64, 64)});
  comm().wait(done);
  op(comm(), "r", {read(0, 64)});
  EXPECT_EQ(checker_.count(), 0);
  op(comm(), "r late", {read(64, 64)});  // written after the record
  EXPECT_EQ(found(), (Strings{"read after write: w late -> r late"}));
  op(compute(), "w again", {write(0, 64)});  // compute knows nothing of comm's read
  EXPECT_EQ(found().back(), "write after read: r -> w again");
}

TEST_P(HazardTest, ReportsTheOverlapOfPartlyOverlappingRanges) {
  op(compute(), "w", {write(100, 100)});
  op(comm(), "below", {write(0, 100)});
  op(comm(), "above", {write(200, 50)});
  EXPECT_EQ(checker_.count(), 0);
  op(comm(), "last byte", {read(199, 10)});
  ASSERT_EQ(checker_.hazards().size(), 1u);
  EXPECT_EQ(checker_.hazards()[0].begin, memory_.data() + 199);
  EXPECT_EQ(checker_.hazards()[0].bytes, 1u);
  op(copy(), "first byte", {read(90, 11)});
  ASSERT_EQ(checker_.hazards().size(), 3u);  // and with "below"
  EXPECT_EQ(checker_.hazards()[1].first_op, "below");
  EXPECT_EQ(checker_.hazards()[1].bytes, 10u);
  EXPECT_EQ(checker_.hazards()[2].first_op, "w");
  EXPECT_EQ(checker_.hazards()[2].begin, memory_.data() + 100);
  EXPECT_EQ(checker_.hazards()[2].bytes, 1u);
}

TEST_P(HazardTest, KeepsTheHistoryOfEachPartOfASplitRange) {
  Event done("done");
  op(compute(), "whole", {write(0, 300)});
  compute().record(done);
  comm().wait(done);
  op(comm(), "middle", {write(100, 100)});
  op(compute(), "left and right", {write(0, 100), write(200, 100)});  // comm never touched those
  EXPECT_EQ(checker_.count(), 0);
  op(compute(), "all", {read(0, 300)});
  EXPECT_EQ(found(), (Strings{"read after write: middle -> all"}));
  EXPECT_EQ(checker_.hazards()[0].begin, memory_.data() + 100);
  EXPECT_EQ(checker_.hazards()[0].bytes, 100u);
}

TEST_P(HazardTest, AReadOfAnotherStreamIsRememberedAfterLaterReads) {
  op(comm(), "r comm", {read(0, 64)});
  for (int i = 0; i < 5; ++i) op(compute(), "r compute", {read(0, 64)});
  op(compute(), "w", {write(0, 64)});
  EXPECT_EQ(found(), (Strings{"write after read: r comm -> w"}));
}

TEST_P(HazardTest, AnEventRecordedAgainStandsForItsLatestRecord) {
  Event event("event");
  op(compute(), "w1", {write(0, 64)});
  compute().record(event);
  op(compute(), "w2", {write(64, 64)});
  compute().record(event);
  comm().wait(event);
  op(comm(), "r", {read(0, 128)});
  EXPECT_EQ(checker_.count(), 0);
  copy().record(event);  // moves it to a stream that knows nothing
  Stream other(device(), "other", {.hazards = &checker_});
  other.wait(event);
  op(other, "r other", {read(0, 64)});
  EXPECT_EQ(found(), (Strings{"read after write: w1 -> r other"}));
}

TEST_P(HazardTest, OrderIsTransitiveThroughTwoEvents) {
  Event a("a");
  Event b("b");
  op(compute(), "w", {write(0, 64)});
  compute().record(a);
  comm().wait(a);
  comm().record(b);
  copy().wait(b);
  op(copy(), "r", {read(0, 64)});
  EXPECT_EQ(checker_.count(), 0);
}

TEST_P(HazardTest, AnEventNeverRecordedOrdersNothing) {
  Event never("never");
  op(compute(), "w", {write(0, 64)});
  comm().wait(never);
  op(comm(), "r", {read(0, 64)});
  EXPECT_EQ(checker_.count(), 1);
}

TEST_P(HazardTest, TheHostIsOrderedByProgramOrderAndByWaiting) {
  Event done("done");
  const Access host_write = access_of({.name = "host write", .ranges = {write(0, 64)}});
  const Access host_read = access_of({.name = "host read", .ranges = {read(64, 64)}});
  compute().announce_host(host_write);
  op(compute(), "upload", {read(0, 64), write(64, 64)});  // enqueued after the host wrote
  compute().record(done);
  EXPECT_EQ(checker_.count(), 0);
  compute().announce_host(host_read);
  EXPECT_EQ(found(), (Strings{"read after write: upload -> host read"}));
  compute().synchronize_host(done);
  compute().announce_host(host_write);
  EXPECT_EQ(checker_.count(), 1);
  // A synchronized host orders streams that share no event.
  op(compute(), "w", {write(128, 64)});
  compute().synchronize();
  op(comm(), "r", {read(128, 64)});
  EXPECT_EQ(checker_.count(), 1);
  op(comm(), "w2", {write(0, 64)});
  compute().announce_host(host_write);
  EXPECT_EQ(found().back(), "write after write: w2 -> host write");
}

TEST_P(HazardTestOnCpu, AStreamThatFailedIsStillSynchronised) {
  enqueue(compute(), TestOp{.name = "w", .ranges = {write(0, 64)}, .task = [] { throw std::runtime_error("failed"); }});
  EXPECT_EQ(error_of([&] { compute().synchronize(); }), "failed");
  op(comm(), "r", {read(0, 64)});
  EXPECT_EQ(checker_.count(), 0);
}

TEST_P(HazardTest, MemoryOfAPoolThatIsGivenOutAgainKeepsItsPast) {
  MemoryPool pool(device());
  auto* block = static_cast<std::byte*>(pool.allocate(512, MemoryCategory::kWorkspace, "a"));
  op(comm(), "send", {{block, 512, false}});
  pool.free(block);
  ASSERT_EQ(pool.allocate(512, MemoryCategory::kWorkspace, "b"), block);
  op(compute(), "fill", {{block, 512, true}});
  EXPECT_EQ(found(), (Strings{"write after read: send -> fill"}));
}

TEST_P(HazardTest, EachPairIsKeptOnceAndAllAreCounted) {
  for (int i = 0; i < 7; ++i) {
    op(compute(), "w", {write(0, 64)});
    op(comm(), "r", {read(0, 64)});
  }
  EXPECT_EQ(found(), (Strings{"read after write: w -> r", "write after read: r -> w"}));
  EXPECT_EQ(checker_.count(), 13);
}

TEST_P(HazardTest, TheSuppressedWaitIsFoundAndOnlyThen) {
  for (std::int64_t suppressed = -1; suppressed < 3; ++suppressed) {
    HazardChecker checker;
    WaitCounter waits{.suppressed = suppressed};
    Stream compute(device(), "compute", {.hazards = &checker, .waits = &waits});
    Stream comm(device(), "comm", {.hazards = &checker, .waits = &waits});
    Event ready("ready");
    Event reduced("reduced");
    op(compute, "backward", {write(0, 64)});
    compute.record(ready);
    comm.wait(ready);
    op(comm, "reduce", {read(0, 64), write(0, 64)});
    comm.record(reduced);
    compute.wait(reduced);
    op(compute, "step", {read(0, 64), write(64, 64)});
    compute.record(ready);
    compute.synchronize_host(ready);
    compute.announce_host(access_of({.name = "host", .ranges = {read(64, 64)}}));
    EXPECT_EQ(waits.count, 3);
    EXPECT_EQ(checker.count() > 0, suppressed >= 0) << suppressed;
  }
}

// compute: produce -> [comm: send] -> consume, in one graph.
void capture_overlap(Graph& graph, Stream& compute, Stream& comm, std::byte* memory, bool join_before_reuse) {
  Event fork("fork");
  Event join("join");
  graph.begin_capture(compute);
  enqueue(compute, TestOp{.name = "produce", .ranges = {{memory, 64, true}}});
  compute.record(fork);
  comm.wait(fork);
  enqueue(comm, TestOp{.name = "send", .ranges = {{memory, 64, false}}});
  comm.record(join);
  if (join_before_reuse) compute.wait(join);
  enqueue(compute, TestOp{.name = "reuse", .ranges = {{memory, 64, true}}});
  if (!join_before_reuse) compute.wait(join);
  graph.end_capture();
}

TEST_P(HazardTest, CaptureItselfReportsNothingAndACorrectReplayIsClean) {
  op(comm(), "before", {read(0, 64)});
  Event before("before");
  comm().record(before);
  Graph graph("overlap");
  capture_overlap(graph, compute(), comm(), memory_.data(), true);
  EXPECT_EQ(checker_.count(), 0);
  compute().wait(before);
  for (int i = 0; i < 3; ++i) graph.replay(compute());
  EXPECT_EQ(checker_.count(), 0) << to_string(checker_.hazards()[0]);
}

TEST_P(HazardTest, AMissingEventBetweenBranchesOfAGraphIsFoundAtReplay) {
  Graph graph("overlap");
  capture_overlap(graph, compute(), comm(), memory_.data(), false);
  EXPECT_EQ(checker_.count(), 0);
  graph.replay(compute());
  EXPECT_EQ(found(), (Strings{"write after read: send -> reuse"}));
  EXPECT_EQ(checker_.hazards()[0].first_lane, "comm in a graph on compute");
}

TEST_P(HazardTest, TwoGraphsOnOneStreamAreOrderedWithTheirBranches) {
  Graph first("first");
  Graph second("second");
  capture_overlap(first, compute(), comm(), memory_.data(), true);
  capture_overlap(second, compute(), comm(), memory_.data(), true);
  first.replay(compute());
  second.replay(compute());
  first.replay(compute());
  op(compute(), "after", {write(0, 64)});
  EXPECT_EQ(checker_.count(), 0);
}

TEST_P(HazardTest, ReplayOnAnotherStreamNeedsAnEvent) {
  Event done("done");
  Graph graph("overlap");
  capture_overlap(graph, compute(), comm(), memory_.data(), true);
  graph.replay(compute());
  compute().record(done);
  copy().wait(done);
  graph.replay(copy());
  EXPECT_EQ(checker_.count(), 0);
  graph.replay(compute());
  EXPECT_THAT(found(), testing::Contains("write after write: reuse -> produce"));
}

TEST_P(HazardTest, ABranchDoesNotOrderReplaysOnTwoStreams) {
  // Only the branch touches the memory; a separate lane that both replays shared would hide the conflict.
  Graph graph("branch");
  Event fork("fork");
  Event join("join");
  graph.begin_capture(compute());
  compute().record(fork);
  comm().wait(fork);
  op(comm(), "in branch", {write(0, 64)});
  comm().record(join);
  compute().wait(join);
  graph.end_capture();
  graph.replay(compute());
  graph.replay(copy());
  EXPECT_EQ(found(), (Strings{"write after write: in branch -> in branch"}));
}

TEST_P(HazardTest, TheCapturedStreamsOwnEagerWorkIsNotOrderedWithTheBranch) {
  Graph graph("overlap");
  capture_overlap(graph, compute(), comm(), memory_.data(), true);
  graph.replay(compute());
  op(comm(), "eager", {write(0, 64)});
  EXPECT_EQ(found(), (Strings{"write after write: reuse -> eager"}));
}

TEST_P(HazardTest, ASuppressedExternalWaitIsFound) {
  for (const std::int64_t suppressed : {-1, 0}) {
    HazardChecker checker;
    WaitCounter waits{.suppressed = suppressed};
    Stream compute(device(), "compute", {.hazards = &checker, .waits = &waits});
    Stream comm(device(), "comm", {.hazards = &checker, .waits = &waits});
    Event ready("ready");
    Graph graph("forward");
    graph.begin_capture(compute);
    compute.wait_external(ready);
    op(compute, "read", {read(0, 64)});
    graph.end_capture();
    op(comm, "gather", {write(0, 64)});
    comm.record(ready);
    graph.replay(compute);
    EXPECT_EQ(waits.count, 1);
    EXPECT_EQ(checker.count() > 0, suppressed >= 0);
  }
}

TEST_P(HazardTest, AnExternalEventOrdersWhatPrecedesItInTheReplay) {
  Event ready("ready");
  Event back("back");
  Graph graph("backward");
  graph.begin_capture(compute());
  compute().wait_external(back);
  op(compute(), "gradient", {write(0, 64)});
  compute().record_external(ready);
  op(compute(), "tail", {write(64, 64)});
  graph.end_capture();
  for (int step = 0; step < 2; ++step) {
    graph.replay(compute());
    comm().wait(ready);
    op(comm(), "reduce", {read(0, 64), write(0, 64)});
    comm().record(back);
  }
  EXPECT_EQ(checker_.count(), 0);
  op(comm(), "too early", {read(64, 64)});
  EXPECT_EQ(found(), (Strings{"read after write: tail -> too early"}));
  op(comm(), "unseen", {write(0, 64)});
  graph.replay(compute());  // `back` was not recorded again
  EXPECT_THAT(found(), testing::Contains("write after write: unseen -> gradient"));
}

TEST_P(HazardTest, AReplayDoesNotMoveAnEventOfTheSameNameOutside) {
  // `event` is recorded by an eager step, and by a captured one, invisible outside of the graph.
  Event event("event");
  Graph graph("g");
  graph.begin_capture(compute());
  op(compute(), "captured", {write(0, 64)});
  compute().record(event);
  compute().wait(event);
  graph.end_capture();
  op(copy(), "eager", {write(64, 64)});
  copy().record(event);
  graph.replay(compute());
  comm().wait(event);
  op(comm(), "r1", {read(64, 64)});
  EXPECT_EQ(checker_.count(), 0);
  op(comm(), "r2", {read(0, 64)});
  EXPECT_EQ(found(), (Strings{"read after write: captured -> r2"}));
}

TEST_P(HazardTest, AHundredThousandOpsWithOneMissingEvent) {
  const int kOps = 100000 / test::one_of(test::kIsSlow ? 10 : 1);
  constexpr std::size_t kBuffers = 1000;
  constexpr std::size_t kBytes = 4096;
  const auto base = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);  // never dereferenced
  HazardChecker checker;
  const int compute = checker.add_lane("compute");
  const int comm = checker.add_lane("comm");
  std::mt19937 random(5);
  const auto random_op = [&](const char* name) {
    Access access(name);
    for (int r = 0; r < 6; ++r) {
      const std::size_t part = random() % 4;  // a quarter, or all
      std::byte* buffer = base + random() % kBuffers * kBytes;
      access.add(buffer + (part == 0 ? 0 : part * kBytes / 4), part == 0 ? kBytes : kBytes / 4, r >= 4);
    }
    return access;
  };
  for (int i = 0; i < kOps; ++i) {
    if (i % 10 != 9) {
      checker.op(compute, random_op("compute op"));
      continue;
    }
    checker.record(compute, 1);
    checker.wait(comm, 1);
    checker.op(comm, random_op("comm op"));
    checker.record(comm, 2);
    if (i != kOps - 1) checker.wait(compute, 2);
  }
  EXPECT_EQ(checker.count(), 0);
  Access all("all");
  all.add(base, kBuffers * kBytes, false);
  checker.op(compute, all);
  ASSERT_EQ(checker.hazards().size(), 1u);
  EXPECT_EQ(checker.hazards()[0].first_op, "comm op");
}

}  // namespace
}  // namespace megalith

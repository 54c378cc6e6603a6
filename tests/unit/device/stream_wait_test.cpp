// Waits that a stream makes: each ordering one, once; inside of graphs and for records of replays, all.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

class StreamWait : public TwoStreamsTest {
 protected:
  void start() override {
    const Instruments instruments{.hazards = &checker_, .waits = &counter_, .captures = &guard_};
    compute_ = std::make_unique<Stream>(device(), "compute", instruments);
    comm_ = std::make_unique<Stream>(device(), "comm", instruments);
    side_ = std::make_unique<Stream>(device(), "side", instruments);
  }
  void TearDown() override {
    for (const auto* stream : {&compute_, &comm_, &side_})
      if (*stream) (*stream)->synchronize();
  }
  Stream& side() { return *side_; }
  // Whether the wait was made, i.e. counted.
  bool waits(Stream& stream, Event& event) {
    const std::int64_t before = counter_.count;
    stream.wait(event);
    return counter_.count > before;
  }

  HazardChecker checker_;
  WaitCounter counter_;
  std::unique_ptr<Stream> side_;
};
MEGALITH_BACKEND_TESTS(StreamWait);

TEST_P(StreamWait, IsMadeOnceForEachRecord) {
  Event event("event");
  EXPECT_FALSE(waits(comm(), event)) << "never recorded";
  for (int step = 0; step < 3; ++step) {
    compute().record(event);
    EXPECT_FALSE(comm().is_after(event));
    EXPECT_FALSE(waits(compute(), event)) << "its own";
    EXPECT_TRUE(waits(comm(), event));
    EXPECT_TRUE(comm().is_after(event));
    EXPECT_FALSE(waits(comm(), event));
    EXPECT_TRUE(waits(side(), event)) << "each stream has waits of its own";
  }
}

TEST_P(StreamWait, CoversOlderRecordsOfTheSameStream) {
  Event older("older"), newer("newer"), other("other");
  compute().record(older);
  side().record(other);
  compute().record(newer);
  EXPECT_TRUE(waits(comm(), newer));
  EXPECT_FALSE(waits(comm(), older));
  EXPECT_TRUE(waits(comm(), other)) << "of another stream";
  compute().record(older);
  compute().record(newer);
  EXPECT_TRUE(waits(comm(), older));
  EXPECT_TRUE(waits(comm(), newer)) << "not known by the older one";
}

// An event moves to the stream that records it last.
TEST_P(StreamWait, RefersToTheLatestRecord) {
  Event event("event");
  compute().record(event);
  EXPECT_TRUE(waits(comm(), event));
  side().record(event);
  EXPECT_TRUE(waits(comm(), event));
  compute().record(event);
  EXPECT_TRUE(waits(comm(), event));
}

TEST_P(StreamWait, CoversWhatTheRecordingStreamHadWaitedFor) {
  Event gathered("gathered"), before("before"), after("after");
  compute().record(gathered);
  comm().record(before);
  EXPECT_TRUE(waits(comm(), gathered));
  comm().record(after);
  EXPECT_TRUE(waits(side(), before));
  EXPECT_FALSE(side().is_after(gathered)) << "the record came before the wait";
  EXPECT_TRUE(waits(side(), after));
  EXPECT_FALSE(waits(side(), gathered));
}

TEST_P(StreamWait, CountsTheSameWhicheverIsSuppressed) {
  std::vector<std::byte> memory(64);
  for (std::int64_t suppressed = -1; suppressed < 2; ++suppressed) {
    HazardChecker checker;
    WaitCounter counter{.suppressed = suppressed};
    Stream main(device(), "compute", {.hazards = &checker, .waits = &counter});
    Stream comm(device(), "comm", {.hazards = &checker, .waits = &counter});
    Event older("older"), ready("ready"), done("done");
    enqueue(main, TestOp{.name = "write", .ranges = {{memory.data(), 64, true}}});
    main.record(older);
    main.record(ready);
    for (Event* each : {&ready, &older, &ready}) comm.wait(*each);
    enqueue(comm, TestOp{.name = "read", .ranges = {{memory.data(), 64, false}}});
    comm.record(done);
    for (int time = 0; time < 2; ++time) main.wait(done);
    enqueue(main, TestOp{.name = "reuse", .ranges = {{memory.data(), 64, true}}});
    EXPECT_EQ(counter.count, 2);
    EXPECT_EQ(checker.count() > 0, suppressed >= 0) << suppressed;
    main.synchronize();
    comm.synchronize();
  }
}

// The graph is captured after the eager wait, and replayed after another one: neither replaces the other.
TEST_P(StreamWait, InsideAGraphIsNoneOutside) {
  int value = 0, seen = 0;
  Event ready("ready"), joined("joined");
  const auto produce = [&] {
    enqueue(compute(), {.name = "produce", .ranges = {writes(value)}, .task = [&] { ++value; }});
  };
  const auto consume = [&] {
    enqueue(comm(), {.name = "consume", .ranges = {reads(value), writes(seen)}, .task = [&] { seen = value; }});
  };
  const auto fork_and_join = [&] {
    produce();
    compute().record(ready);
    const bool made = waits(comm(), ready);
    consume();
    comm().record(joined);
    return waits(compute(), joined) && made;
  };
  EXPECT_TRUE(fork_and_join());
  EXPECT_FALSE(waits(comm(), ready));
  Graph graph("layer 1");
  graph.begin_capture(compute());
  EXPECT_TRUE(fork_and_join());
  EXPECT_TRUE(waits(compute(), joined)) << "a capture keeps each";
  graph.end_capture();
  for (int step = 0; step < 2; ++step) {
    graph.replay(compute());
    EXPECT_TRUE(fork_and_join());
    EXPECT_FALSE(waits(comm(), ready));
  }
  compute().synchronize();
  comm().synchronize();
  EXPECT_EQ(seen, 5);
  EXPECT_EQ(checker_.count(), 0) << to_string(checker_.hazards()[0]);
}

// A replay records at a time that no stream knows, and may be followed by another one.
TEST_P(StreamWait, IsMadeEachTimeForWhatAReplayRecords) {
  int value = 0, seen = 0;
  Event ready("ready"), back("back");
  Graph graph("layer 1");
  graph.begin_capture(compute());
  compute().wait_external(back);
  enqueue(compute(), {.name = "produce", .ranges = {writes(value)}, .task = [&] { ++value; }});
  compute().record_external(ready);
  graph.end_capture();
  for (int step = 1; step <= 3; ++step) {
    graph.replay(compute());
    EXPECT_TRUE(waits(comm(), ready));
    EXPECT_TRUE(waits(comm(), ready));
    EXPECT_FALSE(compute().is_after(ready));
    enqueue(comm(), {.name = "consume", .ranges = {reads(value), writes(seen)}, .task = [&] { seen = value; }});
    comm().record(back);
    EXPECT_TRUE(waits(side(), back));  // no wait of the graph's
    comm().synchronize();
    EXPECT_EQ(seen, step);
  }
  compute().record(ready);  // outside again
  EXPECT_TRUE(waits(comm(), ready));
  EXPECT_FALSE(waits(comm(), ready));
  EXPECT_EQ(checker_.count(), 0);
}

// Same as waits around the graph. A missing one makes a capture illegal or is a hazard at the replay.
TEST_P(StreamWait, EachSuppressedOneOfACapturedForkIsFound) {
  std::vector<std::byte> memory(64);
  const AccessRange write{memory.data(), memory.size(), true}, read{memory.data(), memory.size(), false};
  for (std::int64_t suppressed = -1; suppressed < 5; ++suppressed) {
    HazardChecker checker;
    WaitCounter waits{.suppressed = suppressed};
    Stream main(device(), "compute", {.hazards = &checker, .waits = &waits});
    Stream comm(device(), "comm", {.hazards = &checker, .waits = &waits});
    Graph graph("layer 2");
    Event fork("fork"), first("first"), last("last"), ready("ready"), reduced("reduced");
    const std::string error = error_of([&] {
      graph.begin_capture(main);
      enqueue(main, TestOp{.name = "gemm", .ranges = {write}});
      main.record(fork);
      comm.wait(fork);
      enqueue(comm, TestOp{.name = "all_reduce", .ranges = {write}});
      comm.record(first);
      main.wait(first);
      enqueue(main, TestOp{.name = "add", .ranges = {write}});
      comm.record(last);
      main.wait(last);
      main.record_external(ready);
      graph.end_capture();
      graph.replay(main);
      comm.wait(ready);
      enqueue(comm, TestOp{.name = "reduce", .ranges = {read}});
      comm.record(reduced);
      main.wait(reduced);
      enqueue(main, TestOp{.name = "update", .ranges = {write}});
    });
    graph.abort_capture();
    // The third wait orders the same as the second: the capture requires it.
    EXPECT_EQ(!error.empty() || checker.count() > 0, suppressed >= 0) << suppressed << error;
    main.synchronize();
    comm.synchronize();
  }
}

}  // namespace
}  // namespace megalith

// A graph on a side stream: the main stream goes on at an event inside it while its last copies still run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "core/device/copy.h"
#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void enqueue_copy(Stream& stream, const TestOp& copy) {
  Access access = access_of(copy);
  access.set_copy();
  if (stream.wants_access()) stream.announce(access);
  enqueue_unannounced(stream, copy.task);
  stream.end_op();
}

class ReplayBeside : public TwoStreamsTest {
 protected:
  void start() override {
    TwoStreamsTest::start();
    side_ = std::make_unique<Stream>(device(), "side", Instruments{.captures = &guard_});
  }
  Stream& side() { return *side_; }
  // One op, the event, and a copy.
  void capture(Graph& graph, Event& event) {
    graph.begin_capture(compute());
    enqueue(compute(), TestOp{.name = "mlp"});
    compute().record_external(event);
    enqueue_copy(compute(), {.name = "offload"});
    graph.end_capture();
  }
  // "" where it ran, and is over.
  std::string refusal(Graph& graph, Event& event) {
    return error_of([&] {
      graph.replay_beside(compute(), side(), event);
      compute().synchronize();
      side().synchronize();
    });
  }

  std::unique_ptr<Stream> side_;
};
MEGALITH_BACKEND_TESTS(ReplayBeside);

class ReplayBesideOnCpu : public ReplayBeside {};
INSTANTIATE_TEST_SUITE_P(Backends, ReplayBesideOnCpu, testing::Values(DeviceType::kCpu), test::name_of_device_case);

TEST_P(ReplayBesideOnCpu, MainGoesOnWhileTheTailWaits) {
  Graph graph("layer 2 forward");
  Event resume("layer 2 is done");
  int input = 0, hidden = 0, offloaded = 0, seen = 0;
  Gate* latch = nullptr;
  graph.begin_capture(compute());
  enqueue(compute(), [&] { hidden = 10 * input; });
  compute().record_external(resume);
  enqueue_copy(compute(), {.name = "offload", .task = [&] {
                             latch->pass();
                             offloaded = hidden;
                           }});
  graph.end_capture();
  for (int step = 1; step <= 2; ++step) {
    Gate head, tail;
    latch = &tail;
    enqueue(compute(), [&] {
      head.pass();
      input = step;
    });
    graph.replay_beside(compute(), side(), resume);
    EXPECT_TRUE(resume.recorded());
    enqueue(compute(), [&] { seen = hidden; });
    head.open();  // the side stream has waited for this, or `hidden` is old
    compute().synchronize();
    EXPECT_EQ(seen, 10 * step);
    EXPECT_EQ(offloaded, 10 * (step - 1)) << "the main stream waited for the tail";
    tail.open();
    side().synchronize();
    EXPECT_EQ(offloaded, 10 * step);
  }
  EXPECT_EQ(graph.num_replays(), 2);
}

TEST_P(ReplayBesideOnCpu, AnErrorBeforeTheEventReachesMain) {
  Graph graph("layer 2 forward");
  Event resume("layer 2 is done");
  graph.begin_capture(compute());
  enqueue(compute(), [] { throw std::runtime_error("bad batch"); });
  compute().record_external(resume);
  graph.end_capture();
  graph.replay_beside(compute(), side(), resume);
  EXPECT_EQ(error_of([&] { compute().synchronize(); }), "bad batch");
  EXPECT_EQ(error_of([&] { side().synchronize(); }), "bad batch");
}

TEST_P(ReplayBeside, EachReplayCopiesItsOwnBits) {
  Graph graph("layer 3 forward");
  Event resume("layer 3 is done");
  Event copied("copied");
  int hidden = 0, offloaded = 0, sum = 0;
  graph.begin_capture(compute());
  enqueue(compute(), [&] { ++hidden; });
  compute().record_external(resume);
  copy_to_host(compute(), &offloaded, &hidden, sizeof(hidden));
  graph.end_capture();
  for (int step = 1; step <= 20; ++step) {
    compute().wait(copied);
    graph.replay_beside(compute(), side(), resume);
    side().record(copied);
    enqueue(compute(), [&] { sum += hidden; });
    comm().wait(copied);
    int got = 0;
    enqueue(comm(), [&] { got = offloaded; });
    comm().synchronize();
    ASSERT_EQ(got, step);
  }
  compute().synchronize();
  EXPECT_EQ(sum, 210);
}

TEST_P(ReplayBeside, TheSideStreamIsAnother) {
  Graph graph("layer 1");
  Event resume("resume");
  capture(graph, resume);
  EXPECT_THAT(error_of([&] { graph.replay_beside(compute(), compute(), resume); }),
              AllOf(HasSubstr("graph layer 1"), HasSubstr("expected a side stream, got the stream itself")));
  EXPECT_EQ(graph.num_replays(), 0);
  EXPECT_FALSE(resume.recorded());
}

TEST_P(ReplayBeside, NeitherStreamCaptures) {
  Graph graph("layer 1");
  Graph other("layer 2");
  Event resume("resume");
  capture(graph, resume);
  for (Stream* stream : {&compute(), &side()}) {
    other.begin_capture(*stream);
    EXPECT_THAT(refusal(graph, resume), HasSubstr("during capture of graph layer 2"));
    EXPECT_EQ(other.num_ops(), 0);
    other.abort_capture();
  }
  EXPECT_EQ(graph.num_replays(), 0);
  EXPECT_EQ(refusal(graph, resume), "");
}

TEST_P(ReplayBeside, TheEventIsOneOfThisGraph) {
  Graph graph("layer 1");
  auto other = std::make_unique<Graph>("layer 2");
  Event own("own"), foreign("foreign"), waited("waited"), eager("eager"), twice("twice");
  capture(graph, own);
  capture(*other, foreign);
  const auto expected = HasSubstr("an event that this graph records by record_external, got event ");
  EXPECT_THAT(refusal(graph, foreign), AllOf(expected, HasSubstr("foreign, which graph layer 2 records")));
  other.reset();
  EXPECT_THAT(refusal(graph, foreign), AllOf(expected, HasSubstr("foreign, which no graph records")));
  compute().record(eager);
  EXPECT_THAT(refusal(graph, eager), AllOf(expected, HasSubstr("eager, which no graph records")));

  Graph several("several");
  several.begin_capture(compute());
  compute().wait_external(waited);
  enqueue(compute(), [] {});
  compute().record_external(twice);
  compute().record_external(twice);
  several.end_capture();
  EXPECT_THAT(refusal(several, waited), expected);
  EXPECT_THAT(refusal(several, twice), HasSubstr("one record of event twice in the graph, got several"));
  EXPECT_EQ(graph.num_replays() + several.num_replays(), 0);
  EXPECT_EQ(refusal(graph, own), "");
}

// From the capture on, the event is the graph's alone: another record, that those who wait for it might mean, is stale.
TEST_P(ReplayBeside, AnEventThatWasRecordedElsewhereSinceIsStale) {
  const auto others = {HasSubstr("a record outside of it since the capture"),
                       HasSubstr("a record in graph layer 2 since the capture"),
                       HasSubstr("a record outside of it since the capture")};
  for (std::size_t i = 0; i < others.size(); ++i) {
    Graph graph("layer 1"), other("layer 2");
    Event resume("resume");
    capture(graph, resume);
    EXPECT_EQ(refusal(graph, resume), "");
    if (i == 0) comm().record(resume);
    if (i == 1) capture(other, resume);
    if (i == 2) {
      other.begin_capture(comm());
      comm().record(resume);
      other.end_capture();
    }
    for (int time = 0; time < 2; ++time) {
      EXPECT_THAT(refusal(graph, resume),
                  AllOf(HasSubstr("event resume recorded by this graph alone"), *(others.begin() + i)));
      graph.replay(compute());  // legal, and makes no difference
    }
    compute().synchronize();
    EXPECT_EQ(graph.num_replays(), 3);
  }
}

TEST_P(ReplayBeside, AGraphThatIsCapturedAnewHasNewEvents) {
  Graph graph("layer 1");
  Event before("before"), after("after");
  graph.begin_capture(compute());
  compute().record_external(before);
  graph.abort_capture();
  capture(graph, after);
  EXPECT_THAT(refusal(graph, before), HasSubstr("before, which no graph records"));
  EXPECT_EQ(refusal(graph, after), "");
}

TEST_P(ReplayBeside, OnlyCopiesMayRunAfterTheEvent) {
  Graph graph("layer 1");
  Event early("early"), late("late");
  graph.begin_capture(compute());
  compute().record_external(early);
  enqueue_copy(compute(), {.name = "offload"});
  enqueue(compute(), TestOp{.name = "gemm"});
  enqueue(compute(), TestOp{.name = "gelu"});
  compute().record_external(late);
  enqueue_copy(compute(), {.name = "offload"});
  graph.end_capture();
  EXPECT_THAT(refusal(graph, early),
              AllOf(HasSubstr("only copies after event early, got op gemm"), HasSubstr("record the event after it")));
  EXPECT_EQ(graph.num_replays(), 0);
  EXPECT_EQ(refusal(graph, late), "");
}

// An op on another stream of the capture runs after the event unless the event's stream has waited for it.
TEST_P(ReplayBeside, AnOpOnAnotherLaneCountsToo) {
  for (const bool joined_before : {true, false}) {
    Graph graph("layer 1");
    Event fork("fork"), join("join"), resume("resume");
    graph.begin_capture(compute());
    enqueue(compute(), TestOp{.name = "gemm"});
    compute().record(fork);
    comm().wait(fork);
    enqueue(comm(), TestOp{.name = "all_gather"});
    comm().record(join);
    enqueue_copy(comm(), {.name = "offload"});
    if (joined_before) compute().wait(join);
    compute().record_external(resume);
    comm().record(join);
    compute().wait(join);
    graph.end_capture();
    EXPECT_THAT(refusal(graph, resume), joined_before ? testing::Matcher<std::string>("") : HasSubstr("all_gather"));
  }
}

// Enqueues a step whose waits are, in this order: side for main, main for the event, main for the copy.
void step_beside(Stream& main, Stream& side, std::vector<std::byte>& memory) {
  std::byte *input = memory.data(), *hidden = input + 64, *host = input + 128;
  Graph graph("layer 2");
  Event resume("resume"), copied("copied");
  graph.begin_capture(main);
  enqueue(main, TestOp{.name = "mlp", .ranges = {{input, 64, false}, {hidden, 64, true}}});
  main.record_external(resume);
  enqueue_copy(main, {.name = "offload", .ranges = {{hidden, 64, false}, {host, 64, true}}});
  graph.end_capture();
  for (int i = 0; i < 2; ++i) {
    enqueue(main, TestOp{.name = "embed", .ranges = {{input, 64, true}}});
    graph.replay_beside(main, side, resume);
    enqueue(main, TestOp{.name = "head", .ranges = {{hidden, 64, false}}});
    side.record(copied);
    main.wait(copied);
    enqueue(main, TestOp{.name = "reuse", .ranges = {{hidden, 64, true}}});
  }
  main.synchronize();
  side.synchronize();
}

TEST_P(ReplayBeside, EachSuppressedWaitIsFound) {
  std::vector<std::byte> memory(192);
  for (std::int64_t suppressed = -1; suppressed < 6; ++suppressed) {
    HazardChecker checker;
    WaitCounter waits{.suppressed = suppressed};
    Stream main(device(), "compute", {.hazards = &checker, .waits = &waits});
    Stream side(device(), "side", {.hazards = &checker, .waits = &waits});
    step_beside(main, side, memory);
    EXPECT_EQ(waits.count, 6);
    if (suppressed < 0) {
      EXPECT_EQ(checker.count(), 0) << to_string(checker.hazards()[0]);
      continue;
    }
    ASSERT_GT(checker.count(), 0) << suppressed;
    const Hazard& hazard = checker.hazards()[0];
    const char* const first[] = {"embed", "mlp", "offload"};
    const char* const second[] = {"mlp", "head", "reuse"};
    EXPECT_EQ(hazard.first_op, first[suppressed % 3]) << to_string(hazard);
    EXPECT_EQ(hazard.second_op, second[suppressed % 3]) << to_string(hazard);
  }
}

// Of a graph with a branch: the waits inside it as those around it. One that is missing makes a capture illegal or is a
// hazard at the replay.
TEST_P(ReplayBeside, EachSuppressedWaitOfACapturedForkIsFound) {
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
    // The third wait orders what the second has ordered: it is what the capture asks for.
    EXPECT_EQ(!error.empty() || checker.count() > 0, suppressed >= 0) << suppressed << error;
    main.synchronize();
    comm.synchronize();
  }
}

}  // namespace
}  // namespace megalith

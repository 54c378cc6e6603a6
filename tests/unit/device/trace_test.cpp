#include "core/device/trace.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "core/base/error.h"
#include "core/device/graph.h"
#include "tests/support/matchers.h"
#include "tests/unit/device/test_ops.h"

namespace megalith {
namespace {

class TraceTest : public BackendTest {
 protected:
  void start() override {
    compute_ = std::make_unique<Stream>(device(), "compute", Instruments{.trace = &trace_});
    comm_ = std::make_unique<Stream>(device(), "communication", Instruments{.trace = &trace_});
  }
  Stream& compute() { return *compute_; }
  Stream& comm() { return *comm_; }
  static TestOp sleeping(const char* name) {
    return {.name = name, .task = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const Trace::Span& span : trace_.spans()) list.push_back(span.name);
    return list;
  }
  const Trace::Span& span(std::size_t i) const { return trace_.spans().at(i); }

  Trace trace_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> comm_;
};
MEGALITH_BACKEND_TESTS(TraceTest);

constexpr double kSlackUs = 1;  // GPU clock

double end_of(const Trace::Span& span) { return span.begin_us + span.duration_us + kSlackUs; }

TEST_P(TraceTest, TimesWhatRunsBetweenStartAndStop) {
  enqueue(compute(), TestOp{.name = "before"});
  trace_.start(compute());
  float data[4] = {};
  enqueue(compute(), {.name = "first", .ranges = {reads(data), writes(data)}, .task = sleeping("").task});
  Event done("done");
  compute().record(done);
  comm().wait(done);
  enqueue(comm(), sleeping("second"));
  trace_.stop();
  enqueue(compute(), TestOp{.name = "after"});
  compute().synchronize();

  EXPECT_THAT(names(), ElementsAre("first", "second"));
  EXPECT_THAT(trace_.lane_names(), ElementsAre("host", "compute", "communication"));
  EXPECT_EQ(span(0).lane, 1);
  EXPECT_EQ(span(1).lane, 2);
  EXPECT_EQ(span(0).bytes, 32);
  EXPECT_GE(span(0).duration_us, 2000 - kSlackUs);
  EXPECT_GE(span(1).duration_us, 2000 - kSlackUs);
  EXPECT_LE(span(0).begin_us + 2000, span(1).begin_us + kSlackUs);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_NEAR(trace_.start_us() * 1e-6, std::chrono::duration<double>(now).count(), 3600);
}

TEST_P(TraceTest, RangesEncloseTheirOpsAndAreTimedOnTheHostToo) {
  trace_.start(compute());
  {
    const TraceRange step(compute(), &trace_, [] { return "step"; });
    enqueue(compute(), sleeping("a"));
    const TraceRange layer(compute(), &trace_, [] { return "layer"; });
    enqueue(compute(), sleeping("b"));
  }
  trace_.stop();
  ASSERT_THAT(names(), ElementsAre("step", "step", "a", "layer", "layer", "b"));
  EXPECT_EQ(span(0).lane, 1);
  EXPECT_EQ(span(1).lane, Trace::kHostLane);
  for (const std::size_t inner : {2u, 3u, 5u}) {
    EXPECT_GE(span(inner).begin_us, span(0).begin_us - kSlackUs);
    EXPECT_LE(end_of(span(inner)), end_of(span(0)) + kSlackUs);
  }
  EXPECT_GE(span(5).begin_us, span(3).begin_us - kSlackUs);
  EXPECT_GE(span(3).begin_us, span(2).begin_us + 2000 - 2 * kSlackUs);
  EXPECT_GE(span(0).duration_us, 4000 - kSlackUs);
}

TEST_P(TraceTest, AReplayIsARangeThatListsItsOpsAndACaptureLeavesNothing) {
  trace_.start(compute());
  Graph graph("layer 3 forward");
  graph.begin_capture(compute());
  {
    const TraceRange layer(compute(), &trace_, [] { return "captured"; });
    enqueue(compute(), sleeping("norm"));
    Access access("gemm");
    access.set_cost({.work = Work::kMatrixProduct, .flops = 8});
    compute().announce(access);
    enqueue_unannounced(compute(), [] {});
    compute().end_op();
  }
  graph.end_capture();
  graph.replay(compute());
  graph.replay(compute());
  trace_.stop();
  const bool cpu = device() == DeviceType::kCpu;
  const std::size_t spans = cpu ? 4 : 2;
  ASSERT_EQ(trace_.spans().size(), 2 * spans);
  for (const std::size_t i : {std::size_t{0}, spans}) {
    EXPECT_EQ(span(i).name, "replay layer 3 forward");  // on the stream
    EXPECT_EQ(span(i).lane, 1);
    EXPECT_EQ(span(i).ops, "norm, gemm");
    EXPECT_GE(span(i).duration_us, 2000 - kSlackUs);
    EXPECT_EQ(span(i + 1).name, "replay layer 3 forward");  // and on the host
    EXPECT_EQ(span(i + 1).lane, Trace::kHostLane);
    EXPECT_EQ(span(i + 1).ops, "");
    EXPECT_EQ(span(cpu ? i + 3 : i).flops, 8);  // once
    if (!cpu) continue;
    EXPECT_EQ(span(i).flops, 0);
    EXPECT_EQ(span(i + 2).name, "norm");
    EXPECT_EQ(span(i + 3).name, "gemm");
    EXPECT_GE(span(i + 2).begin_us, span(i).begin_us);
    EXPECT_LE(end_of(span(i + 3)), end_of(span(i)) + kSlackUs);
  }
}

TEST_P(TraceTest, NothingIsTracedUnlessActive) {
  enqueue(compute(), TestOp{.name = "a"});
  {
    const TraceRange range(compute(), &trace_, []() -> std::string { throw std::logic_error("not asked"); });
  }
  EXPECT_FALSE(compute().needs_access());
  EXPECT_THAT(trace_.spans(), IsEmpty());
  EXPECT_THROW(trace_.stop(), Error);
  compute().synchronize();
}

TEST_P(TraceTest, SeveralWindowsAddUp) {
  for (const char* name : {"first", "second"}) {
    trace_.start(compute());
    EXPECT_THROW(trace_.start(compute()), Error);
    enqueue(compute(), TestOp{.name = name});
    trace_.stop();
  }
  EXPECT_THAT(names(), ElementsAre("first", "second"));
  EXPECT_GE(span(0).begin_us, 0);
  EXPECT_GT(span(1).begin_us, 0);
}

TEST(Trace, AnOpThatFailsIsNoSpanOfTheRest) {
  Trace trace;
  Stream stream(DeviceType::kCpu, "compute", {.trace = &trace});
  trace.start(stream);
  enqueue(stream, {.name = "bad", .task = [] { throw std::runtime_error("bad batch"); }});
  EXPECT_EQ(error_of([&] { stream.synchronize(); }), "bad batch");
  EXPECT_EQ(error_of([&] { trace.stop(); }), "bad batch");
}

}  // namespace
}  // namespace megalith

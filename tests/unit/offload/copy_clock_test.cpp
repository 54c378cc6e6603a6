// Tests of the times of copies, on streams with a known order.
#include "offload/copy_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

namespace megalith {
namespace {

constexpr auto kMoment = std::chrono::milliseconds(5);
constexpr double kSeconds = 5e-3;

struct ClockBench {
  Stream compute{DeviceType::kCpu, "compute"}, out{DeviceType::kCpu, "offload"}, back{DeviceType::kCpu, "reload"};
  CopyClock clock;

  // Times a copy that ends shortly after `gate`. The compute stream waits during the copy, or asks after its end.
  void copy(CopyClock::Way way, Stream& stream, bool comes_late) {
    Event copied("copied");
    std::promise<void> gate;
    CopyClock::Span* const span = clock.start(way, stream);
    stream.cpu()->enqueue([open = gate.get_future().share()] {
      open.wait();
      std::this_thread::sleep_for(kMoment);
    });
    CopyClock::end(span, stream);
    stream.record(copied);
    if (comes_late) gate.set_value();
    if (comes_late) stream.synchronize();
    CopyClock::ask(span, compute);
    compute.wait(copied);
    if (comes_late) return compute.synchronize();
    span->asked.wait_on_host();
    gate.set_value();
    compute.synchronize();
  }
};

TEST(CopyClock, ReportsCopiesAndTheirWaitsSeparately) {
  ClockBench bench;
  bench.clock.begin(true);
  bench.copy(CopyClock::Way::kOut, bench.out, true);
  bench.copy(CopyClock::Way::kBack, bench.back, false);
  const OffloadStats times = bench.clock.read();
  EXPECT_GE(times.copy_out, kSeconds);
  EXPECT_EQ(times.wait_out, 0);
  EXPECT_GE(times.copy_back, kSeconds);
  EXPECT_GE(times.wait_back, kSeconds);
}

TEST(CopyClock, CountsEachCopyOfAStepOnce) {
  ClockBench bench;
  bench.clock.begin(true);
  for (int i = 0; i < 3; ++i) bench.copy(CopyClock::Way::kOut, bench.out, true);
  EXPECT_GE(bench.clock.read().copy_out, 3 * kSeconds);
  bench.clock.begin(true);
  EXPECT_EQ(bench.clock.read().copy_out, 0);
  // A copy without its own wait, since a wait for a later copy covers it.
  CopyClock::Span* const span = bench.clock.start(CopyClock::Way::kBack, bench.back);
  CopyClock::end(span, bench.back);
  bench.back.synchronize();
  EXPECT_EQ(bench.clock.read().wait_back, 0);
}

TEST(CopyClock, RecordsNothingInAStepThatIsNotTimed) {
  ClockBench bench;
  bench.clock.begin(false);
  CopyClock::Span* const span = bench.clock.start(CopyClock::Way::kOut, bench.out);
  EXPECT_EQ(span, nullptr);
  CopyClock::end(span, bench.out);
  CopyClock::ask(span, bench.compute);
  EXPECT_EQ(bench.clock.read().copy_out, 0);
}

}  // namespace
}  // namespace megalith

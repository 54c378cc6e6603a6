// Tests of a slot's path to the host and back (transfer_bench.h), with delayed copies and with suppressed waits.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>

#include "core/device/graph.h"
#include "core/instruments/hazard_checker.h"
#include "tests/support/matchers.h"
#include "tests/unit/offload/transfer_bench.h"

namespace megalith::test {
namespace {

using Kind = ActionKind;
using ::testing::IsNan;

class OffloadTransfer : public TransferTest {};
INSTANTIATE_TEST_SUITE_P(Backends, OffloadTransfer, testing::ValuesIn(devices()), name_of_device_case);

TEST_P(OffloadTransfer, ViewsFollowTheirStorageWhoseMemoryIsAnothersMeanwhile) {
  const Plans plans = record();
  HazardChecker hazards;
  Bench bench(device(), {.hazards = &hazards});
  prepare(bench, plans);
  for (int step = 0; step < 3; ++step) {
    bench.step();
    bench.synchronize();
    expect_read(bench);
  }
  const auto offset = [&](int column, int segment, int verb) {
    return plans.device.slots.at({.scope = {.column = column, .segment = segment, .verb = verb}}).offset;
  };
  for (const int column : kColumnsInFlight) {
    EXPECT_EQ(offset(column, 1, 0), offset(column, 0, 0));
    EXPECT_NE(offset(column, 0, kReloadScope), offset(column, 0, 0));
  }
  EXPECT_EQ(hazards.count(), 0);
  EXPECT_EQ(bench.host_pool.system_allocations(), 1);
  EXPECT_EQ(bench.transfer.stats().bytes_out, 6 * 256);
  EXPECT_EQ(bench.transfer.stats().bytes_back, 6 * 256);
}

TEST_P(OffloadTransfer, MemoryThatIsGivenUpBecomesNan) {
  const Plans plans = record();
  Bench bench(device(), {});
  prepare(bench, plans);
  bench.runner.begin(4, {.sequences = 4});
  bench.run(Kind::kForward, 4, 0);
  const Arena::Place place = bench.arena.place_of(points().slots[0].key(4));
  const Tensor memory(place.address, DType::kFp32, {static_cast<std::int64_t>(place.bytes / sizeof(float))});
  bench.run(Kind::kOffload, 4);
  bench.synchronize();
  EXPECT_THAT(download(bench.compute, memory.slice(0, 0, kBytes / 4)), Each(Not(IsNan())));
  bench.run(Kind::kWaitOffload, 4);
  EXPECT_THAT(download(bench.compute, memory), Each(IsNan()));
  bench.synchronize();
}

// All work is enqueued while the copies of one direction cannot start.
TEST_P(OffloadTransfer, SlowCopiesAreWaitedFor) {
  if (device() != DeviceType::kCpu) GTEST_SKIP() << "a GPU's copies follow the same events";
  const Plans plans = record();
  for (const bool out : {true, false}) {
    Bench bench(device(), {});
    prepare(bench, plans);
    std::promise<void> latch;
    (out ? bench.out : bench.back).cpu()->enqueue([open = latch.get_future().share()] { open.wait(); });
    bench.step();
    bench.step();
    latch.set_value();
    bench.synchronize();
    expect_read(bench);
  }
}

TEST_P(OffloadTransfer, EachWaitLeftOutIsFound) {
  const Plans plans = record();
  std::int64_t waits = 1;
  for (std::int64_t ordinal = -1; ordinal < waits; ++ordinal) {
    HazardChecker hazards;
    WaitCounter counter{.suppressed = ordinal};
    Bench bench(device(), {.hazards = &hazards, .waits = &counter});
    prepare(bench, plans);
    bench.step();
    bench.synchronize();
    waits = counter.count;
    EXPECT_EQ(hazards.count() > 0, ordinal >= 0) << "wait " << ordinal << " of " << waits;
  }
  EXPECT_EQ(waits, 2 * 4);
}

// Copies of one column and verb are waited for in each microbatch, which overwrites their source.
TEST_P(OffloadTransfer, EachMicrobatchOfAColumnIsWaitedFor) {
  const Plans plans = record();
  HazardChecker hazards;
  Bench bench(device(), {.hazards = &hazards});
  prepare(bench, plans);
  const int column = kColumnsInFlight[0];
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    bench.runner.begin(column, {.sequences = column});
    bench.run(Kind::kForward, column, 0, microbatch);
    for (const Kind kind : {Kind::kOffload, Kind::kWaitOffload, Kind::kReload, Kind::kWaitReload})
      bench.run(kind, column, -1, microbatch);
    bench.run(Kind::kBackwardData, column, 0, microbatch);
  }
  bench.synchronize();
  EXPECT_EQ(hazards.count(), 0);
  EXPECT_EQ(bench.transfer.stats().offloads, 3);
}

// Also in a list that begins as the previous list ended.
TEST_P(OffloadTransfer, EachListWaitsForItsOwnWrites) {
  const Plans plans = record();
  HazardChecker hazards;
  Bench bench(device(), {.hazards = &hazards});
  prepare(bench, plans);
  const int column = kColumnsInFlight[0];
  for (int list = 0; list < 3; ++list) {
    bench.runner.begin(column, {.sequences = column});
    bench.run(Kind::kForward, column, 0);
    for (const Kind kind : {Kind::kOffload, Kind::kWaitOffload, Kind::kReload, Kind::kWaitReload})
      bench.run(kind, column);
    bench.run(Kind::kBackwardData, column, 0);
    bench.transfer.reset();
  }
  bench.synchronize();
  EXPECT_EQ(hazards.count(), 0);
  EXPECT_EQ(bench.transfer.stats().offloads, 3);
}

// Copies back run in order, so a wait for the last one covers the others.
TEST_P(OffloadTransfer, WhatCameBeforeIsNotWaitedForAgain) {
  const Plans plans = record();
  HazardChecker hazards;
  WaitCounter waits;
  Bench bench(device(), {.hazards = &hazards, .waits = &waits});
  prepare(bench, plans);
  for (const int column : kColumnsInFlight) {
    bench.runner.begin(column, {.sequences = column});
    bench.run(Kind::kForward, column, 0);
    bench.run(Kind::kOffload, column);
    bench.run(Kind::kWaitOffload, column);
  }
  for (const int column : kColumnsInFlight) bench.run(Kind::kReload, column);
  const std::int64_t before = waits.count;
  bench.run(Kind::kWaitReload, kColumnsInFlight[1]);
  EXPECT_EQ(waits.count, before + 1);
  bench.run(Kind::kWaitReload, kColumnsInFlight[0]);
  EXPECT_EQ(waits.count, before + 1);
  for (const int column : kColumnsInFlight) bench.run(Kind::kBackwardData, column, 0);
  bench.synchronize();
  EXPECT_EQ(hazards.count(), 0);
}

// The graph ends with an op that waits until the copy is complete.
TEST_P(OffloadTransfer, ACopyOutIsHiddenByTheRestOfTheGraphThatWroteTheSlot) {
  if (device() != DeviceType::kCpu) GTEST_SKIP() << "a GPU's copies follow the same events";
  const Plans plans = record();
  HazardChecker hazards;
  Bench bench(device(), {.hazards = &hazards});
  prepare(bench, plans);
  std::vector<std::unique_ptr<Graph>> graphs;
  bench.transfer.begin(/*replays=*/true);
  for (const int column : kColumnsInFlight) {
    bench.runner.begin(column, {.sequences = column});
    std::promise<void> latch;
    std::atomic<bool> is_over = false;
    Graph& graph = *graphs.emplace_back(std::make_unique<Graph>("keeper"));
    graph.begin_capture(bench.compute);
    bench.run(Kind::kForward, column, 0);
    bench.transfer.written_in_graph({.kind = Kind::kForward, .segment = 0, .column = column});
    bench.compute.announce(Access("hold"));
    bench.compute.cpu()->enqueue([&, opened = latch.get_future().share()] {
      opened.wait_for(std::chrono::seconds(30));
      is_over = true;
    });
    graph.end_capture();
    graph.replay(bench.compute);
    bench.run(Kind::kOffload, column);
    bench.out.synchronize();
    EXPECT_FALSE(is_over) << "the copy waited for the whole graph";
    latch.set_value();
    bench.run(Kind::kWaitOffload, column);
    bench.run(Kind::kForward, column, 1);
    bench.compute.synchronize();  // `latch` is destroyed next
  }
  for (const int column : {kColumnsInFlight[1], kColumnsInFlight[0]}) {
    bench.run(Kind::kReload, column);
    bench.run(Kind::kWaitReload, column);
    for (const int segment : {0, 1}) bench.run(Kind::kBackwardData, column, segment);
  }
  bench.synchronize();
  expect_read(bench);
  EXPECT_EQ(bench.transfer.stats().from_within, 2);
  EXPECT_EQ(hazards.count(), 0);
}

TEST_P(OffloadTransfer, ACallOutOfOrderIsAnError) {
  const Plans plans = record();
  Bench bench(device(), {});
  prepare(bench, plans);
  bench.runner.begin(4, {.sequences = 4});
  bench.run(Kind::kForward, 4, 0);
  EXPECT_THROW(bench.run(Kind::kWaitOffload, 4), Error);
  bench.run(Kind::kOffload, 4);
  EXPECT_THROW(bench.run(Kind::kReload, 4), Error);
  bench.synchronize();
  bench.transfer.reset();  // as after an aborted list
  bench.step();
  bench.synchronize();
  expect_read(bench);
}

}  // namespace
}  // namespace megalith::test

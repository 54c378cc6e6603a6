// One storage of two views, strided bf16 rows beside fp32 statistics, goes to the host and comes back elsewhere while
// another buffer takes its memory: recorded and planned as a step is, with either stream of copies held up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <future>
#include <optional>

#include "core/device/copy.h"
#include "core/device/hazard_checker.h"
#include "core/ops/elementwise.h"
#include "offload/transfer.h"
#include "tests/support/device_cases.h"
#include "tests/support/download.h"

namespace megalith {
namespace {

using Kind = ActionKind;
using ::testing::Each;
using ::testing::IsNan;
using ::testing::Not;

constexpr std::int64_t kRows = 6, kWidth = 16, kFirst = 3, kColumns = 8;
constexpr std::size_t kRowBytes = kRows * kWidth * 2, kBytes = kRowBytes + kRows * 4;
const std::vector<int> kColumnsInFlight = {4, 9};

// What segment 0 keeps and reads in backward; segment 1 keeps a buffer of the same size.
struct World {
  const std::int32_t* bound = nullptr;               // of the rows, which are then kept alone
  Tensor rows, statistics;                           // what is kept
  std::map<int, Tensor> rows_read, statistics_read;  // in backward, by column
  std::map<int, Tensor> other_read;
};

class Keeper : public Segment {
 public:
  Keeper(World& world, bool is_other) : world_(world), is_other_(is_other) {}

  TensorList forward(const Context& ctx, const Microbatch&, const TensorList& inputs, Stash& stash) const override {
    const Tensor storage = ctx.empty({kBytes}, DType::kUint8, "storage");
    if (is_other_) {
      stash.save(0, SlotKind::kFc1, Tensor(storage.data, DType::kFp32, {kBytes / 4}));
      launch(ctx.compute, Fill{.x = stash.at(0, "other"), .value = 7});
      return inputs;
    }
    const Tensor rows(storage.data, DType::kBf16, {kRows, kWidth});
    const Tensor statistics(storage.as<std::byte>() + kRowBytes, DType::kFp32, {kRows});
    launch(ctx.compute, Copy{.src = world_.rows, .dst = rows});
    launch(ctx.compute, Copy{.src = world_.statistics, .dst = statistics});
    if (world_.bound != nullptr) {
      Tensor bounded = rows;
      bounded.bound = world_.bound;
      stash.save(2, SlotKind::kAct, bounded);
      return inputs;
    }
    stash.save(2, SlotKind::kAct, rows.slice(1, kFirst, kColumns));
    stash.child(1).save(3, SlotKind::kAct, statistics);
    return inputs;
  }
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& gradients,
                           Stash& stash) const override {
    const auto column = static_cast<int>(mb.sequences);
    if (is_other_) {
      launch(ctx.compute, Copy{.src = stash.at(0, "other"), .dst = world_.other_read.at(column)});
      return gradients;
    }
    if (world_.bound != nullptr) {
      Tensor rows = stash.at(2, "rows");
      rows.bound = nullptr;
      launch(ctx.compute, Copy{.src = rows.slice(1, kFirst, kColumns), .dst = world_.rows_read.at(column)});
      return gradients;
    }
    launch(ctx.compute, Copy{.src = stash.at(2, "rows"), .dst = world_.rows_read.at(column)});
    launch(ctx.compute, Copy{.src = stash.child(1).at(3, "statistics"), .dst = world_.statistics_read.at(column)});
    return gradients;
  }
  void backward_weight(const Context&, const Microbatch&, Stash&) const override {}

 private:
  World& world_;
  bool is_other_;
};

OffloadPoints points(std::int64_t sure = -1) {  // 0 or more: of a bounded slot
  return {.slots = {{.segment = 0,
                     .verb = static_cast<int>(Verb::kForward),
                     .kind = SlotKind::kAct,
                     .bounded = sure >= 0,
                     .sure_rows = sure,
                     .last_writer = {.segment = 0},
                     .last_forward_reader = {.segment = 0},
                     .first_backward_reader = {.kind = Kind::kBackwardData, .segment = 0},
                     .name = "rows"}},
          .layer_of_segment = {0, 1}};
}

struct Bench {
  Bench(DeviceType device, const Instruments& instruments, std::int64_t sure_rows = -1)
      : sure(sure_rows),
        pool(device),
        host_pool(device, 0, MemoryPool::Place::kHost),
        arena(pool, mode(device)),
        host(host_pool, mode(device), Arena::kOfHost),
        compute(device, "compute", instruments),
        out(device, "offload", instruments),
        back(device, "reload", instruments) {
    const auto make = [&](DType dtype, const Shape& shape) {
      const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
      return Tensor(pool.allocate(bytes, MemoryCategory::kOther, "test"), dtype, shape);
    };
    world.rows = make(DType::kBf16, {kRows, kWidth});
    world.statistics = make(DType::kFp32, {kRows});
    for (const int column : kColumnsInFlight) {
      world.rows_read[column] = make(DType::kBf16, {kRows, kColumns});
      world.statistics_read[column] = make(DType::kFp32, {kRows});
      world.other_read[column] = make(DType::kFp32, {kBytes / 4});
    }
  }
  static Arena::Mode mode(DeviceType device) {
    return device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned;
  }

  void run(Kind kind, int column, int segment = -1, int microbatch = 0) {
    const Action action{
        .kind = kind, .microbatch = microbatch, .segment = segment, .column = column, .item = segment < 0 ? 0 : -1};
    switch (kind) {
      case Kind::kOffload: return transfer.offload(action);
      case Kind::kWaitOffload: return transfer.wait_offload(action);
      case Kind::kReload: return transfer.reload(action);
      case Kind::kWaitReload: return transfer.wait_reload(action);
      default: runner.run(action);
    }
  }
  // Both columns are in flight at once; the second one comes back first. What comes back meets the other buffer, which
  // is read behind it.
  void step() {
    for (const int column : kColumnsInFlight) {
      runner.begin(column, {.sequences = column});
      run(Kind::kForward, column, 0);
      run(Kind::kOffload, column);
      run(Kind::kWaitOffload, column);
      run(Kind::kForward, column, 1);
    }
    for (const int column : {kColumnsInFlight[1], kColumnsInFlight[0]}) {
      run(Kind::kReload, column);
      run(Kind::kWaitReload, column);
      run(Kind::kBackwardData, column, 0);
      run(Kind::kBackwardData, column, 1);
    }
  }
  void synchronize() {
    transfer.synchronize();
    compute.synchronize();
  }

  const std::int64_t sure;
  MemoryPool pool, host_pool;
  Arena arena, host;
  Stream compute, out, back;
  const Context ctx{.compute = compute, .arena = arena};
  World world;
  Keeper keeper{world, false}, other{world, true};
  SegmentRunner runner{ctx, {{.name = "keeper", .segment = &keeper}, {.name = "other", .segment = &other}}};
  ActivationTransfer transfer{ctx, runner, {.out = out, .back = back}, host, points(sure), true};
};

struct Plans {
  ArenaPlan device, host;
};
Plans record() {
  Timeline timeline;
  Bench bench(DeviceType::kPlan, {.timeline = &timeline});
  bench.step();
  return {.device = plan_arena(timeline, bench.arena), .host = plan_arena(timeline, bench.host)};
}

class OffloadTransfer : public test::OnDevice<DeviceType> {
 protected:
  // What backward of each column read is what forward kept.
  static void expect_read(Bench& bench) {
    const std::vector<float> rows = download(bench.compute, bench.world.rows);
    for (const int column : kColumnsInFlight) {
      const std::vector<float> read = download(bench.compute, bench.world.rows_read[column]);
      for (std::int64_t r = 0; r < kRows; ++r) {
        for (std::int64_t c = 0; c < kColumns; ++c)
          EXPECT_EQ(read[static_cast<std::size_t>(r * kColumns + c)],
                    rows[static_cast<std::size_t>(r * kWidth + kFirst + c)]);
      }
      EXPECT_EQ(download(bench.compute, bench.world.statistics_read[column]),
                download(bench.compute, bench.world.statistics));
      EXPECT_EQ(download(bench.compute, bench.world.other_read[column]), std::vector<float>(kBytes / 4, 7));
    }
  }
  static void prepare(Bench& bench, const Plans& plans) {
    bench.arena.use(plans.device);
    bench.host.use(plans.host);
    std::vector<float> rows(kRows * kWidth), statistics(kRows);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
    for (std::size_t i = 0; i < statistics.size(); ++i) statistics[i] = 0.1f * static_cast<float>(i + 1);
    upload(bench.compute, rows, bench.world.rows);
    upload(bench.compute, statistics, bench.world.statistics);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, OffloadTransfer, testing::ValuesIn(test::devices()), test::name_of_device_case);

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

// A copy engine takes the first rows whether in use or not, but no more than there are, a kernel those behind them.
TEST_P(OffloadTransfer, RowsInUseMove) {
  const Plans plans = record();
  for (const std::int64_t sure : {0, 3, 9}) {
    for (const std::int32_t used : {0, 2, 5}) {
      Bench bench(device(), {}, sure);
      prepare(bench, plans);
      const Tensor bound(bench.pool.allocate(4, MemoryCategory::kOther, "bound"), DType::kInt32, {1});
      const Tensor counted(bench.pool.allocate(16, MemoryCategory::kOther, "counted"), DType::kInt64, {2});
      std::array<std::int64_t, 2> bytes{};
      copy_from_host(bench.compute, bound.data, &used, sizeof(used));
      copy_from_host(bench.compute, counted.data, bytes.data(), sizeof(bytes));
      bench.world.bound = bound.as<const std::int32_t>();
      bench.transfer.count_into(counted);
      bench.step();
      bench.synchronize();
      const std::int64_t moved = std::max(std::min(sure, kRows), std::int64_t{used});
      const std::vector<float> rows = download(bench.compute, bench.world.rows);
      for (const int column : kColumnsInFlight) {
        const std::vector<float> read = download(bench.compute, bench.world.rows_read[column]);
        for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
          const std::int64_t row = i / kColumns, column_at = kFirst + i % kColumns;
          const float value = read[static_cast<std::size_t>(i)];
          if (row < moved) {
            EXPECT_EQ(value, rows[static_cast<std::size_t>(row * kWidth + column_at)]);
          } else if (column_at % 2 == 1) {  // the upper half of a NaN in fp32
            EXPECT_TRUE(std::isnan(value)) << row;
          }
        }
      }
      copy_to_host(bench.compute, bytes.data(), counted.data, sizeof(bytes));
      bench.compute.synchronize();
      EXPECT_THAT(bytes, Each(2 * moved * kWidth * 2));  // of both columns
      EXPECT_EQ(bench.transfer.stats().bounded_out, 2 * 256);
    }
  }
}

// Everything is enqueued while the copies of one direction cannot start.
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

// The copies of one column and verb: each microbatch overwrites what they read.
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

// Also those of a list that begins as the one before ended.
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

// Copies back follow each other: a wait for the last one is one for all.
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
  bench.transfer.reset();  // as a list that broke off
  bench.step();
  bench.synchronize();
  expect_read(bench);
}

}  // namespace
}  // namespace megalith

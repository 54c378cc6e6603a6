// Bench for transfers of one storage with two views: strided bf16 rows and fp32 statistics. It goes to the host and
// returns to another place while another buffer uses its memory. The step is recorded and planned.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <vector>

#include "core/ops/elementwise/elementwise.h"
#include "offload/transfer.h"
#include "tests/support/device_cases.h"
#include "tests/support/download.h"

namespace megalith::test {

inline constexpr std::int64_t kRows = 6, kWidth = 16, kFirst = 3, kColumns = 8;
inline constexpr std::size_t kRowBytes = kRows * kWidth * 2, kBytes = kRowBytes + kRows * 4;
inline const std::vector<int> kColumnsInFlight = {4, 9};

// Tensors that segment 0 keeps and reads in backward. Segment 1 keeps a buffer of the same size.
struct World {
  const std::int32_t* bound = nullptr;               // of the rows, which are then kept without statistics
  std::function<TensorList(const Tensor&)> views;    // made from the rows and kept instead; may be empty
  Tensor rows, statistics;                           // kept values
  std::map<int, Tensor> rows_read, statistics_read;  // in backward; key: column
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
      const TensorList views = world_.views ? world_.views(bounded) : TensorList{bounded};
      for (int i = 0; i < views.size(); ++i) stash.save(2 + i, SlotKind::kAct, views[i]);
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
      const Tensor rows(stash.at(2, "rows").data, DType::kBf16, {kRows, kWidth});
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

inline OffloadPoints points(std::int64_t sure = -1) {  // >= 0: the slot is bounded
  return {.slots = {{.segment = 0,
                     .verb = static_cast<int>(Verb::kForward),
                     .kind = SlotKind::kAct,
                     .bounded = sure >= 0,
                     .sure_rows = sure,
                     .last_writer = {.segment = 0},
                     .last_forward_reader = {.segment = 0},
                     .first_backward_reader = {.kind = ActionKind::kBackwardData, .segment = 0},
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

  void run(ActionKind kind, int column, int segment = -1, int microbatch = 0) {
    const Action action{
        .kind = kind, .microbatch = microbatch, .segment = segment, .column = column, .item = segment < 0 ? 0 : -1};
    switch (kind) {
      case ActionKind::kOffload: return transfer.offload(action);
      case ActionKind::kWaitOffload: return transfer.wait_offload(action);
      case ActionKind::kReload: return transfer.reload(action);
      case ActionKind::kWaitReload: return transfer.wait_reload(action);
      default: runner.run(action);
    }
  }
  // Both columns are in flight at once, and the second one returns first. The returned storage and the other buffer are
  // live together.
  void step() {
    for (const int column : kColumnsInFlight) {
      runner.begin(column, {.sequences = column});
      run(ActionKind::kForward, column, 0);
      run(ActionKind::kOffload, column);
      run(ActionKind::kWaitOffload, column);
      run(ActionKind::kForward, column, 1);
    }
    for (const int column : {kColumnsInFlight[1], kColumnsInFlight[0]}) {
      run(ActionKind::kReload, column);
      run(ActionKind::kWaitReload, column);
      run(ActionKind::kBackwardData, column, 0);
      run(ActionKind::kBackwardData, column, 1);
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
inline Plans record() {
  Timeline timeline;
  Bench bench(DeviceType::kPlan, {.timeline = &timeline});
  bench.step();
  return {.device = plan_arena(timeline, bench.arena), .host = plan_arena(timeline, bench.host)};
}

class TransferTest : public OnDevice<DeviceType> {
 protected:
  // Expects that backward of each column read the values that forward kept.
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

}  // namespace megalith::test

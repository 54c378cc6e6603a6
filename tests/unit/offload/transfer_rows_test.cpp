// Tests of bounded storages: only rows in use move, if all views have the same rows.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "core/device/copy.h"
#include "tests/support/matchers.h"
#include "tests/unit/offload/transfer_bench.h"

namespace megalith::test {
namespace {

class OffloadedRows : public TransferTest {};
INSTANTIATE_TEST_SUITE_P(Backends, OffloadedRows, testing::ValuesIn(devices()), name_of_device_case);

// A copy engine copies the first `sure` rows, used or not; a kernel copies the other rows in use.
TEST_P(OffloadedRows, RowsInUseMove) {
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
          } else if (column_at % 2 == 1) {  // upper half of an fp32 NaN
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

// Views of one storage, and whether their bound defines the rows in use.
struct ViewsCase {
  const char* name;
  std::function<TensorList(const Tensor&)> views;
  bool moves_rows = false;
};

std::vector<ViewsCase> cases_of_views() {
  const auto with = [](Tensor rows, const std::int32_t* bound) {
    rows.bound = bound;
    return rows;
  };
  const auto shaped = [=](const Tensor& rows, std::int64_t length, std::int64_t width) {
    return with(Tensor(rows.data, rows.dtype, {length, width}), rows.bound);
  };
  const auto later = [](Tensor rows) {
    rows.data = rows.as<std::byte>() + 16;
    return rows;
  };
  return {
      {"the same twice",
       [](const Tensor& rows) {
         return TensorList{rows, rows};
       },
       true},
      {"one without a bound", [=](const Tensor& rows) { return TensorList{with(rows, nullptr)}; }},
      {"one that is strided", [](const Tensor& rows) { return TensorList{rows.slice(1, 0, kColumns)}; }},
      {"another bound",
       [=](const Tensor& rows) {
         return TensorList{rows, with(rows, rows.bound + 1)};
       }},
      {"another length",
       [=](const Tensor& rows) {
         return TensorList{rows, shaped(rows, 2 * kRows, kWidth / 2)};
       }},
      {"another width",
       [=](const Tensor& rows) {
         return TensorList{rows, shaped(rows, kRows, kWidth / 2)};
       }},
      {"another begin",
       [=](const Tensor& rows) {
         return TensorList{rows, later(rows)};
       }},
  };
}

TEST_P(OffloadedRows, AllOfAStorageMovesWhereItsViewsDiffer) {
  const Plans plans = record();
  const std::int32_t used[] = {2, 2};
  for (const ViewsCase& each : cases_of_views()) {
    SCOPED_TRACE(each.name);
    Bench bench(device(), {}, 0);
    prepare(bench, plans);
    const Tensor bound(bench.pool.allocate(sizeof(used), MemoryCategory::kOther, "bound"), DType::kInt32, {2});
    copy_from_host(bench.compute, bound.data, used, sizeof(used));
    bench.world.bound = bound.as<const std::int32_t>();
    bench.world.views = each.views;
    bench.step();
    bench.synchronize();
    EXPECT_EQ(bench.transfer.stats().bounded_out, each.moves_rows ? 2 * 256 : 0);
    const std::vector<float> rows = download(bench.compute, bench.world.rows);
    for (const int column : kColumnsInFlight) {
      const std::vector<float> read = download(bench.compute, bench.world.rows_read[column]);
      constexpr std::int64_t kLast = kRows - 1;  // not in use
      EXPECT_EQ(read[kLast * kColumns] == rows[kLast * kWidth + kFirst], !each.moves_rows);
    }
  }
}

}  // namespace
}  // namespace megalith::test

#include "core/ops/elementwise/copy_rows.h"

#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class CopyRowsTest : public OpTest {};
MEGALITH_OP_TESTS(CopyRowsTest);

TEST_P(CopyRowsTest, AllRows) {
  for (const Shape& shape : {Shape{5}, Shape{7, 3}, Shape{3, 4, 8}, Shape{0, 6}, Shape{300, 200}}) {
    const Tensor src = input(shape), dst = output(shape);
    run(CopyRows{.src = src, .dst = dst});
    EXPECT_EQ(values(dst), values(src));
  }
}

// Rows beyond the bound are neither read nor written; a bound above the number of rows means all of them.
TEST_P(CopyRowsTest, RowsInUse) {
  for (const std::int32_t used : {0, 3, 5, 9}) {
    for (const std::int64_t width : {3, 16}) {
      Tensor src = input({5, width}), dst = output({5, width});
      src.bound = dst.bound = device_struct(used);
      run(CopyRows{.src = src, .dst = dst}, used == 0 ? Idles{{src.data, "no rows"}} : Idles{});
      src.bound = dst.bound = nullptr;
      const std::int64_t rows = std::min<std::int64_t>(used, 5);
      EXPECT_EQ(values(dst.slice(0, 0, rows)), values(src.slice(0, 0, rows)));
      expect_untouched(dst.slice(0, rows, 5 - rows));
    }
  }
}

// Rows ahead of the first were copied elsewhere, and count as bytes that moved.
TEST_P(CopyRowsTest, RowsInUseAfterTheFirst) {
  for (const std::int32_t used : {-1, 0, 2, 3, 4, 9}) {
    for (const std::int64_t width : {3, 16}) {
      constexpr std::int64_t kFirst = 3;
      Tensor src = input({5, width}), dst = output({5, width});
      src.bound = dst.bound = device_struct(used);
      const Tensor counted = inout({1}, DType::kInt64, {7});
      run(CopyRows{.src = src, .dst = dst, .first = kFirst, .counted = counted},
          used <= kFirst ? Idles{{src.data, "no rows"}, {src.bound, "fewer than the first"}} : Idles{});
      src.bound = dst.bound = nullptr;
      const std::int64_t end = std::clamp<std::int64_t>(used, kFirst, 5);
      EXPECT_EQ(values(dst.slice(0, kFirst, end - kFirst)), values(src.slice(0, kFirst, end - kFirst)));
      expect_untouched(dst.slice(0, 0, kFirst));
      expect_untouched(dst.slice(0, end, 5 - end));
      EXPECT_EQ(values(counted)[0], 7 + static_cast<double>(end * width) * static_cast<double>(size_of(dtype())));
    }
  }
}

// Consecutive copies add to one number.
TEST_P(CopyRowsTest, CountsTheBytesOfRowsInUse) {
  for (const std::int32_t used : {0, 3}) {
    Tensor src = input({5, 16}), dst = output({5, 16});
    src.bound = dst.bound = device_struct(used);
    const Tensor counted = inout({1}, DType::kInt64, {1e12});
    run(CopyRows{.src = src, .dst = dst, .counted = counted},
        used == 0 ? Idles{{src.data, "no rows"}, {counted, "nothing is added"}} : Idles{});
    EXPECT_EQ(values(counted)[0], 1e12 + static_cast<double>(used * 16 * size_of(dtype())));
  }
}

}  // namespace
}  // namespace megalith::test

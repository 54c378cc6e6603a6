#include "core/ops/reduce.h"

#include <cmath>

#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class ReduceTest : public OpTest {
 protected:
  void compare_rows(const ReduceRows& op, const Values& before = {}) {
    const Values x = values(op.x);
    const auto columns = static_cast<std::size_t>(op.x.size(1));
    Values want = before.empty() ? Values(columns) : before, magnitude = want;
    for (double& m : magnitude) m = std::abs(m);
    for (std::size_t i = 0; i < x.size(); ++i) {
      want[i % columns] += x[i];
      magnitude[i % columns] += std::abs(x[i]);
    }
    run(op);
    expect_close(op.out, want, {.length = op.x.size(0) + 1, .magnitude = magnitude});
  }
};
MEGALITH_OP_TESTS(ReduceTest);

TEST_P(ReduceTest, Rows) {
  for (const Shape& shape : {Shape{0, 5}, {3, 0}, {1, 1}, {7, 9}, {8, 16}, {9, 1030}, {1100, 3}, {513, 33}}) {
    for (const DType type : {DType::kFp32, DType::kBf16})
      compare_rows({.x = input(shape), .out = output({shape[1]}, type)});
  }
}

TEST_P(ReduceTest, RowsAccumulate) {
  for (const DType type : {DType::kFp32, DType::kBf16}) {
    for (const Shape& shape : {Shape{30, 21}, Shape{3001, 8}}) {
      const Tensor out = inout({shape[1]}, type, normal(shape[1]));
      compare_rows({.x = input(shape), .out = out, .accumulate = true}, values(out));
    }
  }
}

TEST_P(ReduceTest, StridedAndBoundedRows) {
  compare_rows({.x = input({12, 40}).slice(1, 5, 17), .out = output({17}, DType::kFp32)});
  const Tensor whole = input({12, 10}), out = output({10}, DType::kFp32), want = output({10}, DType::kFp32);
  Tensor bounded = whole;
  bounded.bound = device_struct(std::int32_t{9});
  run(ReduceRows{.x = whole.slice(0, 0, 9), .out = want});
  const Values expected = values(want);
  run(ReduceRows{.x = bounded, .out = out});
  EXPECT_EQ(values(out), expected);
}

TEST_P(ReduceTest, ToScalar) {
  for (const std::int64_t n : {0, 1, 7, 33, 2048, 2049, 10007}) {
    for (const bool accumulate : {false, true}) {
      const Tensor x = input({n}, DType::kFp32), out = inout({1}, DType::kFp32, {2.5});
      run(ReduceToScalar{.x = x, .out = out, .accumulate = accumulate},
          accumulate && n == 0 ? Idles{{out, "nothing is added"}} : Idles{});
      double want = accumulate ? 2.5 : 0, magnitude = want;
      for (double value : values(x)) {
        want += value;
        magnitude += std::abs(value);
      }
      expect_close(out, {want}, {.length = n + 1, .magnitude = {magnitude}});
    }
  }
}

}  // namespace
}  // namespace megalith::test

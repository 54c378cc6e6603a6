#include "core/ops/elementwise/reduce.h"

#include <cmath>

#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class ReduceTest : public OpTest {
 protected:
  // All in one call.
  void compare_rows(const std::vector<RowSum>& sums, bool accumulate = false) {
    std::vector<Values> want, magnitude;
    for (const RowSum& sum : sums) {
      const Values x = values(sum.x);
      const auto columns = static_cast<std::size_t>(sum.x.size(1));
      want.push_back(accumulate ? values(sum.out) : Values(columns));
      magnitude.push_back(want.back());
      for (double& m : magnitude.back()) m = std::abs(m);
      for (std::size_t i = 0; i < x.size(); ++i) {
        want.back()[i % columns] += x[i];
        magnitude.back()[i % columns] += std::abs(x[i]);
      }
    }
    run(ReduceRows{.sums = sums, .accumulate = accumulate});
    for (std::size_t i = 0; i < sums.size(); ++i)
      expect_close(sums[i].out, want[i], {.length = sums[i].x.size(0) + 1, .magnitude = magnitude[i]});
  }
};
MEGALITH_OP_TESTS(ReduceTest);

TEST_P(ReduceTest, Rows) {
  for (const Shape& shape : {Shape{0, 5}, {3, 0}, {1, 1}, {7, 9}, {8, 16}, {9, 1030}, {1100, 3}, {513, 33}}) {
    for (const DType type : {DType::kFp32, DType::kBf16})
      compare_rows({{.x = input(shape), .out = output({shape[1]}, type)}});
  }
}

TEST_P(ReduceTest, RowsAccumulate) {
  for (const DType type : {DType::kFp32, DType::kBf16}) {
    for (const Shape& shape : {Shape{30, 21}, Shape{3001, 8}}) {
      compare_rows({{.x = input(shape), .out = inout({shape[1]}, type, normal(shape[1]))}}, true);
    }
  }
}

// More tensors than a launch accepts on CUDA, of both dtypes, some in pieces: each has the bits of a separate call.
TEST_P(ReduceTest, SumsOfOneCall) {
  std::vector<RowSum> sums;
  for (const Shape& shape :
       {Shape{20, 24}, {3, 7}, {2500, 16}, {0, 4}, {40, 9}, {2300, 5}, {1, 64}, {300, 8}, {70, 3}}) {
    const DType type = sums.size() % 3 == 0 ? DType::kFp32 : dtype();
    sums.push_back({.x = input(shape, type), .out = output({shape[1]}, type)});
  }
  compare_rows(sums);
  std::vector<Values> together;
  for (const RowSum& sum : sums) together.push_back(values(sum.out));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    run(ReduceRows{.sums = {sums[i]}});
    EXPECT_EQ(values(sums[i].out), together[i]) << to_string(sums[i].x.shape);
  }
}

// They may run at the same time.
TEST_P(ReduceTest, SumsOfOneCallAreSeparate) {
  const Tensor x = input({3, 8}, DType::kFp32), out = output({8}, DType::kFp32), other = output({3, 8}, DType::kFp32);
  const auto refused = [this](const RowSum& first, const RowSum& second) {
    expect_refused(ReduceRows{.sums = {first, second}, .accumulate = true}, "sum.out: expected memory that no other");
  };
  refused({.x = x, .out = out}, {.x = x, .out = out});
  refused({.x = x.slice(1, 0, 5), .out = out.slice(0, 0, 5)}, {.x = x.slice(1, 0, 4), .out = out.slice(0, 4, 4)});
  refused({.x = x, .out = out}, {.x = out.view({1, 8}), .out = other.slice(0, 0, 1).view({8})});
  refused({.x = other, .out = out}, {.x = x, .out = other.slice(0, 2, 1).view({8})});
}

TEST_P(ReduceTest, StridedAndBoundedRows) {
  compare_rows({{.x = input({12, 40}).slice(1, 5, 17), .out = output({17}, DType::kFp32)}});
  const Tensor whole = input({12, 10}), out = output({10}, DType::kFp32), want = output({10}, DType::kFp32);
  Tensor bounded = whole;
  bounded.bound = device_struct(std::int32_t{9});
  run(ReduceRows{.sums = {{.x = whole.slice(0, 0, 9), .out = want}}});
  const Values expected = values(want);
  run(ReduceRows{.sums = {{.x = bounded, .out = out}}});
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

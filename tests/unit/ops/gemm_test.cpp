#include "core/ops/gemm/gemm.h"

#include <cmath>

#include "core/ops/elementwise/activation.h"
#include "tests/reference/activation.h"
#include "tests/reference/gemm.h"
#include "tests/support/op_test.h"
#include "tests/unit/ops/magnitude.h"

namespace megalith::test {
namespace {

Values magnitudes(Values x) {
  for (double& value : x) value = std::abs(value);
  return x;
}

reference::GemmSizes sizes_of(const Gemm& op) {
  return {.m = static_cast<std::size_t>(op.c.size(0)),
          .n = static_cast<std::size_t>(op.c.size(1)),
          .k = static_cast<std::size_t>(op.transpose_a ? op.a.size(0) : op.a.size(1)),
          .transpose_a = op.transpose_a,
          .transpose_b = op.transpose_b};
}

// The terms of the slope of GELU's tanh form: 0.5, 0.5 t, 0.5 x u', 0.5 x t^2 u'.
double gelu_slope_magnitude(double x) {
  const double t = std::tanh(reference::gelu_tanh_argument(x));
  return 0.5 * (1 + std::abs(t) + std::abs(x * (1 + t * t) * reference::gelu_tanh_argument_slope(x)));
}

constexpr double kMaxGeluSlope = 1.13;

class GemmTest : public OpTest {
 protected:
  // Runs an op with a GELU and compares; the product may or may not be rounded ahead of the GELU.
  void compare_gelu(const Gemm& op) {
    const reference::GemmSizes sizes = sizes_of(op);
    const auto length = static_cast<std::int64_t>(sizes.k) + 2;
    Values product = reference::gemm(values(op.a), values(op.b), sizes);
    Values magnitude = reference::gemm(magnitudes(values(op.a)), magnitudes(values(op.b)), sizes);
    const Values bias = op.bias ? values(op.bias) : Values(sizes.n);
    for (std::size_t i = 0; i < product.size(); ++i) {
      product[i] += bias[i % sizes.n];
      magnitude[i] += std::abs(bias[i % sizes.n]);
    }
    run(op);
    Values allowed = sum_magnitude(product, magnitude, op.c.dtype, length), want(product.size());
    if (op.pre_activation)
      expect_close(op.pre_activation, product, {.length = length, .magnitude = allowed, .what = "pre-activation"});
    const Values at = op.gelu_input ? values(op.gelu_input) : product;
    for (std::size_t i = 0; i < product.size(); ++i) {
      const double slope = reference::gelu_slope(at[i], false);
      want[i] = op.gelu_input ? product[i] * slope : reference::gelu(product[i], false);
      allowed[i] = op.gelu_input ? std::abs(slope) * allowed[i] + std::abs(product[i]) * gelu_slope_magnitude(at[i])
                                 : kMaxGeluSlope * allowed[i] + std::abs(product[i]);
    }
    expect_close(op.c, want, {.length = length, .magnitude = allowed});
  }

  // Runs the op and compares; `before` is the old value of c (empty unless accumulating).
  void compare(const Gemm& op, const Values& before = {}) {
    const reference::GemmSizes sizes = sizes_of(op);
    const auto k = static_cast<std::int64_t>(sizes.k);
    Values want = reference::gemm(values(op.a), values(op.b), sizes);
    Values magnitude = reference::gemm(magnitudes(values(op.a)), magnitudes(values(op.b)), sizes);
    const Values bias = op.bias ? values(op.bias) : Values(sizes.n);
    // cuBLASLt rounds the product ahead of the addition of a bf16 c.
    const bool rounds_twice = device() == DeviceType::kCuda && op.accumulate && op.c.dtype == DType::kBf16;
    Values rounded(want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (rounds_twice) rounded[i] = std::abs(want[i]) + std::abs(bias[i % sizes.n]) + std::abs(before[i]);
      const double start = bias[i % sizes.n] + (before.empty() ? 0 : before[i]);
      want[i] += start;
      magnitude[i] += std::abs(bias[i % sizes.n]) + (before.empty() ? 0 : std::abs(before[i]));
    }
    run(op);
    Values allowed = sum_magnitude(want, magnitude, op.c.dtype, k + 2);
    for (std::size_t i = 0; i < allowed.size(); ++i) allowed[i] += rounded[i];
    expect_close(op.c, want, {.length = k + 2, .magnitude = allowed});
  }
};
MEGALITH_OP_TESTS(GemmTest);

TEST_P(GemmTest, AllTransposesOfSmallSizes) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{0, 5, 3},
                                {5, 0, 3},
                                {3, 5, 0},
                                {1, 1, 1},
                                {6, 16, 8},
                                {7, 17, 9},
                                {5, 15, 7},
                                {1, 33, 20},
                                {29, 1, 31},
                                {13, 40, 64}}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        const Tensor a = input(transpose_a ? Shape{k, m} : Shape{m, k});
        const Tensor b = input(transpose_b ? Shape{n, k} : Shape{k, n});
        compare({.a = a, .b = b, .c = output({m, n}), .transpose_a = transpose_a, .transpose_b = transpose_b});
      }
    }
  }
}

// Past a block in every dim: 192 rows, 1024 columns (256 for bf16), depth 256.
TEST_P(GemmTest, SeveralBlocks) {
  compare({.a = input({195, 515}), .b = input({515, 19}), .c = output({195, 19})});
  compare({.a = input({259, 3}),
           .b = input({1030, 259}),
           .c = output({3, 1030}),
           .transpose_a = true,
           .transpose_b = true,
           .bias = input({1030})});
}

TEST_P(GemmTest, BiasAndFp32Output) {
  compare({.a = input({9, 21}), .b = input({21, 18}), .c = output({9, 18}), .bias = input({18})});
  compare({.a = input({9, 300}), .b = input({300, 18}), .c = output({9, 18}, DType::kFp32), .bias = input({18})});
  compare({.a = input({4, 0}), .b = input({0, 18}), .c = output({4, 18}), .bias = input({18})});
}

TEST_P(GemmTest, AccumulatesIntoItsOutput) {
  for (const DType type : {dtype(), DType::kFp32}) {
    for (const std::int64_t k : {0, 17, 600}) {
      const Tensor c = inout({13, 35}, type, normal(13 * 35));
      const Values before = values(c);
      compare({.a = input({k, 13}),
               .b = input({k, 35}),
               .c = c,
               .transpose_a = true,
               .bias = input({35}),
               .accumulate = true},
              before);
    }
  }
}

// Rows of full packs, which a bf16 GEMM on CUDA fuses, and others.
TEST_P(GemmTest, GeluAfterAndBeforeIt) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{0, 8, 3},
                                {5, 0, 3},
                                {4, 8, 0},
                                {1, 8, 8},
                                {33, 40, 24},
                                {64, 128, 300},
                                {7, 17, 9},
                                {13, 21, 40}}) {
    SCOPED_TRACE(std::to_string(m) + " " + std::to_string(n) + " " + std::to_string(k));
    const double deviation = 2 / std::sqrt(static_cast<double>(k) + 1);  // products of both tails and the bend
    for (const bool with_bias : {false, true}) {
      compare_gelu({.a = input({m, k}),
                    .b = input({n, k}, deviation),
                    .c = output({m, n}),
                    .transpose_b = true,
                    .bias = with_bias ? input({n}) : Tensor{},
                    .pre_activation = output({m, n})});
    }
    compare_gelu({.a = input({m, k}), .b = input({k, n}), .c = output({m, n}), .gelu_input = input({m, n}, 2)});
  }
}

TEST_P(GemmTest, GeluHasTheBitsOfAnOpOfItsOwn) {
  if (device() == DeviceType::kCuda && dtype() == DType::kBf16) GTEST_SKIP() << "cuBLASLt rounds once, after the GELU";
  const Tensor a = input({9, 300}), b = input({300, 24}, 0.1), bias = input({24}), at = input({9, 24});
  const Tensor h = output({9, 24}), y = output({9, 24});
  // Outputs start afresh in each run, so the product travels by its values.
  run(Gemm{.a = a, .b = b, .c = h, .bias = bias});
  const Values product = values(h);
  run(GeluForward{.x = input({9, 24}, dtype(), product), .y = y});
  const Values forward = values(y);
  run(Gemm{.a = a, .b = b, .c = y, .bias = bias, .pre_activation = h});
  EXPECT_EQ(values(h), product);
  EXPECT_EQ(values(y), forward);

  run(Gemm{.a = a, .b = b, .c = h});
  run(GeluBackward{.x = at, .dy = input({9, 24}, dtype(), values(h)), .dx = y});
  const Values backward = values(y);
  run(Gemm{.a = a, .b = b, .c = y, .gelu_input = at});
  EXPECT_EQ(values(y), backward);
}

TEST_P(GemmTest, RefusesAGeluThatDoesNotFit) {
  const Tensor a = input({4, 6}), b = input({6, 8}), c = output({4, 8}), h = output({4, 8});
  expect_refused(Gemm{.a = a, .b = b, .c = c, .accumulate = true, .gelu_input = h}, "accumulate");
  expect_refused(Gemm{.a = a, .b = b, .c = c, .bias = input({8}), .gelu_input = h}, "bias");
  expect_refused(Gemm{.a = a, .b = b, .c = c, .pre_activation = output({4, 8}), .gelu_input = h}, "pre_activation");
}

TEST_P(GemmTest, StridedRowsLeaveTheirGapsAlone) {
  const Tensor a = input({14, 40}).slice(1, 3, 21), b = input({21, 50}).slice(1, 7, 30);
  const Tensor whole = output({14, 64});
  compare({.a = a, .b = b, .c = whole.slice(1, 5, 30)});
  expect_untouched(whole.slice(1, 0, 5));
  expect_untouched(whole.slice(1, 35, 29));
}

// Products of generation, for which CUDA has a kernel in bf16 and full packs. One warp, two or four share k; a last
// turn and part may be partial, and a last warp may have no columns.
TEST_P(GemmTest, FewRows) {
  compare({.a = input({1, 8}), .b = input({5, 8}), .c = output({1, 5}), .transpose_b = true, .b_is_constant = true});
  compare({.a = input({3, 1000}),
           .b = input({130, 1000}),
           .c = output({3, 130}, DType::kFp32),
           .transpose_b = true,
           .bias = input({130}),
           .b_is_constant = true});
  compare(
      {.a = input({4, 2072}).slice(1, 16, 2056), .b = input({19, 2056}), .c = output({4, 19}), .transpose_b = true});
  compare({.a = input({2, 10008}), .b = input({13, 10008}), .c = output({2, 13}), .transpose_b = true});
}

TEST_P(GemmTest, FewRowsDoNotDependOnTheirNumber) {
  if (device() == DeviceType::kCuda && dtype() == DType::kFp32) GTEST_SKIP() << "cuBLASLt multiplies fp32";
  const Tensor a = input({4, 304}), b = input({37, 304}), together = output({4, 37}), separate = output({4, 37});
  run(Gemm{.a = a, .b = b, .c = together, .transpose_b = true});
  const Values want = values(together);
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 2}, {1, 3}}) {
    const Tensor part = separate.slice(0, first, count);
    run(Gemm{.a = a.slice(0, first, count), .b = b, .c = part, .transpose_b = true});
    const Values got = values(part);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[static_cast<std::size_t>(first) * 37 + i]);
  }
}

// Any microbatch size is possible, since a row's result does not depend on the rows computed with it.
TEST_P(GemmTest, RowsDoNotDependOnTheirNumber) {
  if (device() == DeviceType::kCuda) GTEST_SKIP() << "cuBLASLt chooses another algorithm for another number of rows";
  const Tensor a = input({200, 300}), b = input({37, 300});
  const Tensor together = output({200, 37}), separate = output({200, 37});
  run(Gemm{.a = a, .b = b, .c = together, .transpose_b = true});
  const Values want = values(together);
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 10}, {11, 189}}) {
    const Tensor part = separate.slice(0, first, count);
    run(Gemm{.a = a.slice(0, first, count), .b = b, .c = part, .transpose_b = true});
    const Values got = values(part);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[static_cast<std::size_t>(first) * 37 + i]);
  }
}

TEST_P(GemmTest, NanReachesEveryResultItBelongsTo) {
  Values given = normal(20 * 20);
  given[3 * 20 + 7] = std::nan("");
  const Tensor a = input({20, 20}, dtype(), given), c = output({20, 20});
  run(Gemm{.a = a, .b = input({20, 20}), .c = c});
  const Values got = values(c);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 20 == 3) << i;
}

}  // namespace
}  // namespace megalith::test

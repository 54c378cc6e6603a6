#include "core/ops/elementwise/elementwise.h"

#include <array>
#include <cmath>
#include <limits>

#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class ElementwiseTest : public OpTest {};
MEGALITH_OP_TESTS(ElementwiseTest);

TEST_P(ElementwiseTest, Add) {
  for (const std::int64_t n : {0, 1, 7, 8, 9, 33, 1025}) {
    const Tensor a = input({n}), b = input({n}), y = output({n});
    run(Add{.a = a, .b = b, .y = y});
    const Values left = values(a), right = values(b);
    Values want;
    for (std::size_t i = 0; i < left.size(); ++i) want.push_back(left[i] + right[i]);
    expect_close(y, want);
  }
}

TEST_P(ElementwiseTest, AddInPlace) {
  const Values given = normal(50);
  const Tensor a = input({5, 10}, dtype(), given), b = input({5, 10}), y = output({5, 10});
  const Tensor together = inout({5, 10}, dtype(), given);
  run(Add{.a = a, .b = b, .y = y});
  const Values separate = values(y);
  run(Add{.a = together, .b = b, .y = together});
  EXPECT_EQ(values(together), separate);
  run(Add{.a = b, .b = together, .y = together});
  EXPECT_EQ(values(together), separate);
}

TEST_P(ElementwiseTest, SumParts) {
  for (const std::int64_t parts : {1, 2, 3, 4, 5, 9}) {
    for (const std::int64_t n : {0, 1, 7, 8, 33, 1025, 8192}) {
      const Tensor x = input({parts, n}), y = output({n});
      run(SumParts{.parts = x, .y = y});
      const Values given = values(x);
      Values want;
      for (std::int64_t i = 0; i < n; ++i) {  // in this order, and rounded once
        float sum = static_cast<float>(given[static_cast<std::size_t>(i)]);
        for (std::int64_t p = 1; p < parts; ++p) sum += static_cast<float>(given[static_cast<std::size_t>(p * n + i)]);
        want.push_back(dtype() == DType::kBf16 ? to_float(to_bf16(sum)) : sum);
      }
      EXPECT_EQ(values(y), want) << parts << " parts of " << n;
    }
  }
}

TEST_P(ElementwiseTest, CastRoundsToNearestEven) {
  const double inf = std::numeric_limits<double>::infinity();
  // Halfway cases of bf16 in both directions, overflow to infinity, the smallest denormal, NaN.
  Values given = {1 + 0x1p-8, 1 + 3 * 0x1p-8, 1 + 0x1p-8 + 0x1p-20, 3.4e38, inf, -inf, 0x1p-149, -0.0, std::nan("")};
  for (const double v : normal(60)) given.push_back(v);
  const auto n = static_cast<std::int64_t>(given.size());
  const Tensor x = input({n}, DType::kFp32, given), y = output({n});
  run(CastRows{.x = x, .y = y});
  const Values got = values(y);
  EXPECT_TRUE(std::isnan(got[8]));
  EXPECT_TRUE(std::signbit(got[7]));
  if (dtype() == DType::kFp32) {
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(got[i], static_cast<double>(static_cast<float>(given[i])));
  } else {
    EXPECT_EQ(got[0], 1);
    EXPECT_EQ(got[1], 1 + 4 * 0x1p-8);
    EXPECT_EQ(got[2], 1 + 2 * 0x1p-8);
    EXPECT_EQ(got[3], inf);
    EXPECT_EQ(got[4], inf);
    EXPECT_EQ(got[5], -inf);
    EXPECT_EQ(got[6], 0);
  }
  expect_close(y.slice(0, 4, n - 4), values(x.slice(0, 4, n - 4)));
  // Back to fp32 is exact.
  const Tensor narrow = input({n}, dtype(), given), wide = output({n}, DType::kFp32);
  run(CastRows{.x = narrow, .y = wide});
  const Values before = values(narrow), after = values(wide);
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (i != 8) {
      EXPECT_EQ(after[i], before[i]);
    }
  }
  for (const std::int64_t count : {0, 1, 8, 9}) {
    const Tensor from = input({count}), to = output({count}, DType::kBf16);
    run(CastRows{.x = from, .y = to});
    expect_close(to, values(from));
  }
}

TEST_P(ElementwiseTest, CopyAnyStrides) {
  const Tensor whole = input({3, 4, 5, 6});
  Tensor transposed = whole;
  transposed.shape = {3, 5, 4, 6};
  std::swap(transposed.strides[1], transposed.strides[2]);
  Tensor inner = whole.slice(3, 2, 1);  // last dim of size 1 between gaps
  Tensor reversed_roles = whole;        // last dim strided
  reversed_roles.shape = {3, 4, 6, 5};
  std::swap(reversed_roles.strides[2], reversed_roles.strides[3]);
  for (const Tensor& src : {whole, whole.slice(1, 1, 2), whole.slice(3, 1, 3), transposed, inner, reversed_roles,
                            whole.slice(0, 0, 0), whole.view({360}), whole.slice(2, 4, 1)}) {
    const Tensor dst = output(src.shape);
    run(Copy{.src = src, .dst = dst});
    EXPECT_EQ(values(dst), values(src)) << to_string(src.shape);
  }
  // Into strides.
  const Tensor target = output({3, 4, 5, 6});
  const Tensor part = target.slice(3, 1, 3);
  const Tensor source = input(part.shape);
  run(Copy{.src = source, .dst = part});
  EXPECT_EQ(values(part), values(source));
  expect_untouched(target.slice(3, 0, 1));
  expect_untouched(target.slice(3, 4, 2));
  for (const DType type : {DType::kInt32, DType::kFp64, DType::kUint8}) {
    const Tensor from = input({2, 3}, type, {1, 2, 3, 4, 5, 6}), to = output({2, 3}, type);
    run(Copy{.src = from, .dst = to});
    EXPECT_EQ(values(to), values(from));
  }
}

TEST_P(ElementwiseTest, Fill) {
  for (const DType type : {dtype(), DType::kInt32, DType::kInt64, DType::kFp64, DType::kUint8}) {
    const Tensor x = output({3, 7}, type);
    const Tensor part = x.slice(1, 2, 4);
    run(Fill{.x = part, .value = 3});
    EXPECT_EQ(values(part), Values(12, 3.0));
    expect_untouched(x.slice(1, 0, 2));
    expect_untouched(x.slice(1, 6, 1));
  }
  Tensor column = output({3, 7}).slice(1, 1, 1);
  column.shape = {3};
  column.strides[0] = 7;
  run(Fill{.x = column, .value = -1.5});
  EXPECT_EQ(values(column), Values(3, -1.5));
  run(Fill{.x = output({0, 4}), .value = 1});
}

TEST_P(ElementwiseTest, Refusals) {
  expect_refused(SumParts{.parts = input({0, 6}), .y = output({6})}, "op.parts: expected at least one part");
}

// Only a pure copy may end a graph that is replayed concurrently with a stream.
TEST(Elementwise, CopyAloneIsACopy) {
  std::array<float, 4> x{}, y{};
  const Tensor from(x.data(), DType::kFp32, {4}), to(y.data(), DType::kFp32, {4});
  Access copies("copy"), casts("cast_rows");
  access(Copy{.src = from, .dst = to}, copies);
  access(CastRows{.x = from, .y = to}, casts);
  EXPECT_TRUE(copies.is_copy());
  EXPECT_FALSE(casts.is_copy());
}

}  // namespace
}  // namespace megalith::test

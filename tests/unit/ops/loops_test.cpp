#include "core/ops/loops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace megalith {
namespace {

std::vector<float> numbers(std::int64_t n) {
  std::vector<float> x(static_cast<std::size_t>(n));  // exactly n, so that ASAN sees an overrun
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i)) / 3;
  return x;
}

// A partial vector touches only its elements and gives the same bits as a full one.
TEST(Loops, EveryElementOnce) {
  for (std::int64_t n = 0; n <= 19; ++n) {
    const std::vector<float> x = numbers(n);
    std::vector<float> y(x.size() + 1, 99);
    std::vector<bf16> z(x.size());
    for_each_element(n, [x = Row(x.data()), y = Row(y.data()), z = Row(z.data())](auto i) {
      y.set(i, simd::exp(x[i]));
      z.set(i, x[i]);
      z.set(i, z[i]);
    });
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(y[i], _mm256_cvtss_f32(simd::exp(simd::set1(x[i]))));
      EXPECT_EQ(z[i].bits, to_bf16(x[i]).bits);
    }
    EXPECT_EQ(y.back(), 99);
  }
}

TEST(Loops, OutputMayBeInput) {
  for (const std::int64_t n : {5, 8, 43}) {
    const std::vector<float> x = numbers(n);
    std::vector<float> y = x;
    for_each_element(n, [y = Row(y.data())](auto i) { y.set(i, fma(y[i], 2.0f, y[i])); });
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], std::fma(x[i], 2.0f, x[i]));
  }
}

// The order that the header promises, wherever the row begins.
TEST(Loops, SumHasOneOrder) {
  for (std::int64_t n = 0; n <= 150; ++n) {
    for (const std::int64_t offset : {0, 1, 7}) {
      const std::vector<float> whole = numbers(n + offset);
      const float* x = whole.data() + offset;
      float sums[32] = {};
      for (std::int64_t i = 0; i < n; ++i) sums[i % 32] += x[i] - 2;
      for (int half = 16; half > 0; half /= 2) {
        for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
      }
      const auto [got, twice] = sum_elements<2>(n, [x = Row(x)](auto& lanes, auto i) {
        lanes[0] += x[i] - 2.0f;
        lanes[1] += 2.0f * (x[i] - 2.0f);
      });
      EXPECT_EQ(got, sums[0]) << n << " from " << offset;
      EXPECT_EQ(twice, 2 * sums[0]) << n << " from " << offset;
    }
  }
}

TEST(Loops, SumOfBf16) {
  const std::vector<bf16> x(37, to_bf16(1.5f));
  const auto [sum] = sum_elements<1>(37, [x = Row(x.data())](auto& lanes, auto i) { lanes[0] += x[i]; });
  EXPECT_EQ(sum, 55.5f);
}

}  // namespace
}  // namespace megalith

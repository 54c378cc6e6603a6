// Accuracy of the vectorized functions against libm's fp64, over a sweep of all floats.
#include "core/ops/simd_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numbers>
#include <vector>

namespace megalith::test {
namespace {

float apply(simd::F32x8 (*function)(simd::F32x8), float x) { return _mm256_cvtss_f32(function(simd::set1(x))); }

// Distance in units of the last place of the float nearest to `want`.
double ulp_error(float got, double want) {
  const auto nearest = static_cast<float>(std::abs(want));
  const double ulp = static_cast<double>(std::nextafter(nearest, std::numeric_limits<float>::infinity())) -
                     static_cast<double>(nearest);
  return std::abs(static_cast<double>(got) - want) / ulp;
}

struct Range {
  float low, high;  // with equal signs
};

// The largest error over about a million floats of each range, evenly spread over the bit patterns.
double max_ulp_error(simd::F32x8 (*function)(simd::F32x8), double (*reference)(double), std::vector<Range> ranges) {
  double worst = 0;
  for (const Range& range : ranges) {
    const auto first = std::bit_cast<std::uint32_t>(range.low);
    const auto last = std::bit_cast<std::uint32_t>(range.high);
    const std::uint32_t from = std::min(first, last);
    const std::uint32_t count = std::max(first, last) - from;
    const std::uint32_t step = std::max(1u, count / 1000003);
    for (std::uint64_t offset = 0; offset <= count; offset += step) {
      const float x = std::bit_cast<float>(from + static_cast<std::uint32_t>(offset));
      const double want = reference(static_cast<double>(x));
      if (std::abs(want) < static_cast<double>(std::numeric_limits<float>::min())) continue;
      worst = std::max(worst, ulp_error(apply(function, x), want));
    }
  }
  testing::Test::RecordProperty("max_ulp_error", std::to_string(worst));
  std::printf("max error %.3f ulp\n", worst);
  return worst;
}

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();

TEST(SimdMath, Exp) {
  EXPECT_LT(max_ulp_error(simd::exp, std::exp, {{-87.3f, -1e-30f}, {1e-30f, 88.72f}}), 1.0);
  EXPECT_LT(max_ulp_error(simd::exp_nonpositive, std::exp, {{-87.3f, -1e-30f}}), 1.0);
  for (const auto function : {simd::exp, simd::exp_nonpositive}) {
    EXPECT_EQ(apply(function, 0), 1);
    EXPECT_EQ(apply(function, -0.0f), 1);
    EXPECT_EQ(apply(function, -87.4f), 0);
    EXPECT_EQ(apply(function, -1e30f), 0);
    EXPECT_EQ(apply(function, -kInfinite), 0);
  }
  // NaN of any payload.
  for (const std::uint32_t bits : {0x7FC00000u, 0x7FC00001u, 0xFFFFFFFFu, 0xFFC001FFu, 0x7F800001u}) {
    EXPECT_TRUE(std::isnan(apply(simd::exp, std::bit_cast<float>(bits))));
    EXPECT_TRUE(std::isnan(apply(simd::exp_nonpositive, std::bit_cast<float>(bits))));
  }
  EXPECT_TRUE(std::isfinite(apply(simd::exp, 88.722f)));
  EXPECT_EQ(apply(simd::exp, 88.73f), kInfinite);
  EXPECT_EQ(apply(simd::exp, 1e30f), kInfinite);
  EXPECT_EQ(apply(simd::exp, kInfinite), kInfinite);
  EXPECT_TRUE(std::isnan(apply(simd::exp, kFloatNan)));
}

TEST(SimdMath, Log) {
  EXPECT_LT(max_ulp_error(simd::log, std::log, {{std::numeric_limits<float>::min(), 3e38f}, {0.5f, 2.0f}}), 1.0);
  EXPECT_EQ(apply(simd::log, 1), 0);
  EXPECT_EQ(apply(simd::log, 0), -kInfinite);
  EXPECT_EQ(apply(simd::log, kInfinite), kInfinite);
  EXPECT_TRUE(std::isnan(apply(simd::log, -1)));
  EXPECT_TRUE(std::isnan(apply(simd::log, kFloatNan)));
  EXPECT_EQ(simd::log(8.0f), apply(simd::log, 8.0f));
}

TEST(SimdMath, Tanh) {
  EXPECT_LT(max_ulp_error(simd::tanh, std::tanh, {{-20.0f, -1e-30f}, {1e-30f, 20.0f}, {0.5f, 1.0f}}), 2.0);
  EXPECT_EQ(apply(simd::tanh, kInfinite), 1);
  EXPECT_EQ(apply(simd::tanh, -1e30f), -1);
  EXPECT_TRUE(std::signbit(apply(simd::tanh, -0.0f)));
  EXPECT_TRUE(std::isnan(apply(simd::tanh, kFloatNan)));
}

TEST(SimdMath, Logistic) {
  const auto value = [](simd::F32x8 x) { return simd::logistic_pair(x).value; };
  const auto complement = [](simd::F32x8 x) { return simd::logistic_pair(x).complement; };
  const auto reference = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto reference_complement = [](double x) { return 1 / (1 + std::exp(x)); };
  const std::vector<Range> ranges = {{-87.3f, -1e-30f}, {1e-30f, 87.3f}};
  EXPECT_LT(max_ulp_error(simd::logistic, reference, ranges), 3.0);
  EXPECT_LT(max_ulp_error(value, reference, ranges), 3.0);
  EXPECT_LT(max_ulp_error(complement, reference_complement, ranges), 3.0);
  for (const auto function : {+[](simd::F32x8 x) { return simd::logistic(x); }, +value}) {
    EXPECT_EQ(apply(function, -kInfinite), 0);
    EXPECT_EQ(apply(function, 0), 0.5f);
    EXPECT_EQ(apply(function, kInfinite), 1);
    EXPECT_TRUE(std::isnan(apply(function, kFloatNan)));
  }
  EXPECT_EQ(apply(complement, -kInfinite), 1);
  EXPECT_EQ(apply(complement, kInfinite), 0);
}

// The error of the lower tail grows with the rounding of x^2 / 2 in the exponent.
TEST(SimdMath, NormalDistribution) {
  for (float x = -13; x <= 13; x += 0x1p-12f) {
    const auto got = simd::normal_distribution(simd::set1(x));
    const double wide = static_cast<double>(x);
    const double bound = 4 + wide * wide / 2;
    const double below = 0.5 * std::erfc(-wide / std::numbers::sqrt2);
    const double gauss = std::exp(-wide * wide / 2);
    if (below > 2e-38) {
      ASSERT_LT(ulp_error(_mm256_cvtss_f32(got.below), below), bound) << x;
    }
    if (gauss > 2e-38) {
      ASSERT_LT(ulp_error(_mm256_cvtss_f32(got.gauss), gauss), bound) << x;
    }
  }
}

TEST(SimdMath, Bf16RoundsAsTheScalarDoes) {
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFu; bits += 997) {
    alignas(16) bf16 stored[8];
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    simd::store(stored, simd::set1(x));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(to_float(stored[3])));
    } else {
      ASSERT_EQ(stored[3].bits, to_bf16(x).bits) << x;
    }
  }
  bf16 all[8] = {to_bf16(1),  to_bf16(-2),   to_bf16(3), to_bf16(kInfinite),
                 to_bf16(-5), to_bf16(0.5f), to_bf16(7), to_bf16(8)};
  alignas(32) float wide[8];
  _mm256_store_ps(wide, simd::load(all));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(wide[i], to_float(all[i]));
}

TEST(SimdMath, Reductions) {
  const auto x = _mm256_setr_ps(1, 2, 4, 8, 16, 32, 64, -128);
  EXPECT_EQ(simd::horizontal_sum(x), -1);
  EXPECT_EQ(simd::horizontal_max(x), 64);
  EXPECT_EQ(simd::horizontal_max(_mm256_setr_ps(-9, -8, -7, -6, -5, -4, -3, -10)), -3);
}

}  // namespace
}  // namespace megalith::test

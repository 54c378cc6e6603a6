#include "core/tensor/bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace megalith {
namespace {

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// The nearest of the two neighbors, compared in fp64, ties to the even one; beyond the largest, half a step more is
// still the largest. Shares no code with the integer trick under test.
std::uint16_t reference(float x) {
  const auto below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);  // towards zero
  if (std::isinf(x)) return below;
  const auto above = static_cast<std::uint16_t>(below + 1);
  const auto value = [](std::uint16_t bits) {
    return static_cast<double>(float_of(static_cast<std::uint32_t>(bits) << 16));
  };
  const double magnitude = std::fabs(static_cast<double>(x));
  const double low = std::fabs(value(below));
  const double high = std::isinf(value(above)) ? std::ldexp(1.0, 128) : std::fabs(value(above));
  if (magnitude - low < high - magnitude) return below;
  if (magnitude - low > high - magnitude) return above;
  return below % 2 == 0 ? below : above;
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const bf16 x{static_cast<std::uint16_t>(bits)};
    const bf16 back = to_bf16(to_float(x));
    if (std::isnan(to_float(x))) {
      ASSERT_TRUE(std::isnan(to_float(back))) << bits;
      ASSERT_EQ(back.bits & 0x8000, x.bits & 0x8000);
    } else {
      ASSERT_EQ(back.bits, x.bits);
    }
  }
}

TEST(Bf16, RoundsEveryUpperHalfLikeTheReference) {
  std::uint32_t random = 1;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    if ((upper & 0x7f80u) == 0x7f80u) continue;  // infinity and NaN
    const auto expect_like_reference = [&](std::uint32_t lower) {
      const float x = float_of(upper << 16 | lower);
      ASSERT_EQ(to_bf16(x).bits, reference(x)) << std::hex << (upper << 16 | lower);
    };
    for (std::uint32_t lower : {0x0u, 0x1u, 0x7ffeu, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu})
      expect_like_reference(lower);
    for (int i = 0; i < 8; ++i) {
      random = random * 1664525u + 1013904223u;
      expect_like_reference(random >> 16);
    }
    if (upper % 2047 == 0) {
      for (std::uint32_t lower = 0; lower < 65536; ++lower) expect_like_reference(lower);
    }
    if (HasFatalFailure()) return;
  }
}

TEST(Bf16, InfinitiesStayAndLargeValuesOverflowToThem) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float(to_bf16(kInfinity)), kInfinity);
  EXPECT_EQ(to_float(to_bf16(-kInfinity)), -kInfinity);
  EXPECT_EQ(to_float(to_bf16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_EQ(to_bf16(float_of(0x7f7f7fff)).bits, 0x7f7f);  // just below half a step
}

TEST(Bf16, EveryKindOfNanStaysNan) {
  for (std::uint32_t sign : {0u, 0x80000000u}) {
    for (std::uint32_t payload : {0x1u, 0x7fffu, 0x8000u, 0xffffu, 0x10000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
      const bf16 x = to_bf16(float_of(sign | 0x7f800000u | payload));
      EXPECT_TRUE(std::isnan(to_float(x))) << std::hex << payload;
      EXPECT_EQ(x.bits >> 15, sign >> 31);
    }
  }
}

TEST(Bf16, ConvertsByTypeAndKeepsTheSignOfZero) {
  EXPECT_EQ(from_float<float>(1.1f), 1.1f);
  EXPECT_EQ(from_float<bf16>(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_float(2.5f), 2.5f);
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
}

}  // namespace
}  // namespace megalith

// Four standard normal numbers from four random words, with equal bits on every x86-64-v3 machine and CUDA device.
// The code is fp64 with explicit fused multiply-adds and only correctly rounded operations of the C library.
// No expression a * b + c is left for a compiler to fuse.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "core/base/host_device.h"

namespace megalith {

// Returns a uniform number of mean 0 and standard deviation 1 from a random word; its conversion to fp64 is exact.
MEGALITH_HOST_DEVICE inline double uniform_number(std::uint32_t word) {
  return std::fma(static_cast<double>(word), 0x1p-31, 0x1p-32 - 1) * 1.7320508075688772;  // sqrt(3)
}

struct NormalBlock {
  double value[4];
};

namespace detail {

// Returns the natural logarithm of a normal x in (0, 1]; error below 2 ulp of fp64.
// x = 2^e m, m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(s) with s = (m - 1) / (m + 1), |s| < 0.1716.
MEGALITH_HOST_DEVICE inline double natural_log(double x) {
  const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, x) - 0x3FE6A09E667F3BCDu;
  const auto exponent = static_cast<double>(static_cast<std::int64_t>(bits) >> 52);
  const double m = __builtin_bit_cast(double, (bits & 0xFFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu);
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double p = 1.0 / 21;
  for (int odd = 19; odd >= 3; odd -= 2) p = std::fma(p, z, 1.0 / odd);
  return std::fma(exponent, std::numbers::ln2, std::fma(2 * s * z, p, 2 * s));
}

struct Point {
  double cosine;
  double sine;
};

// Returns the point at angle 2 pi turn, 0 <= turn < 1: Taylor series within an eighth of a turn of the nearest quarter.
MEGALITH_HOST_DEVICE inline Point on_circle(double turn) {
  const double quarter = std::floor(std::fma(turn, 4.0, 0.5));
  const double angle = std::fma(quarter, -0.25, turn) * (2 * std::numbers::pi);  // |angle| <= pi / 4; the fma is exact
  const double z = angle * angle;
  double cosine = 1;
  double sine = 1;
  for (int k = 9; k >= 1; --k) {
    cosine = std::fma(z * (-1.0 / ((2 * k) * (2 * k - 1))), cosine, 1.0);
    sine = std::fma(z * (-1.0 / ((2 * k) * (2 * k + 1))), sine, 1.0);
  }
  sine *= angle;
  switch (static_cast<int>(quarter) & 3) {
    case 0: return {cosine, sine};
    case 1: return {-sine, cosine};
    case 2: return {-cosine, -sine};
    default: return {sine, -cosine};
  }
}

}  // namespace detail

// Computes normal numbers (Box & Muller 1958): words 0, 1 and words 2, 3 give two numbers each. The radius uses 32
// bits, so the largest magnitude is 6.77.
MEGALITH_HOST_DEVICE inline NormalBlock normal_block(const std::uint32_t (&words)[4]) {
  NormalBlock result;
  for (int pair = 0; pair < 4; pair += 2) {
    // 0.5 centers the value in its step of 2^-32, so the logarithm never sees 0.
    const double radius = std::sqrt(-2 * detail::natural_log((words[pair] + 0.5) * 0x1p-32));
    const detail::Point point = detail::on_circle(words[pair + 1] * 0x1p-32);
    result.value[pair] = radius * point.cosine;
    result.value[pair + 1] = radius * point.sine;
  }
  return result;
}

}  // namespace megalith

#include "core/base/rng.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace megalith {

namespace {

// The products below are fused where std::fma says so and nowhere else can a compiler fuse: no a * b + c is left.

// ln(x) for a normal x in (0, 1]; error below 2 ulp of fp64. x = 2^e m, m in [sqrt(1/2), sqrt(2)),
// ln m = 2 atanh(s) with s = (m - 1) / (m + 1), |s| < 0.1716.
double natural_log(double x) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x) - 0x3FE6A09E667F3BCDu;
  const auto exponent = static_cast<double>(static_cast<std::int64_t>(bits) >> 52);
  const double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu);
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

// At the angle 2 pi turn, 0 <= turn < 1: Taylor series within an eighth of a turn of the nearest quarter.
Point on_circle(double turn) {
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

// Four standard normal numbers.
std::array<double, 4> normal_block(const PhiloxCounter& words) {
  std::array<double, 4> result;
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    // In the middle of their 2^32 steps, so that the logarithm never sees 0.
    const double radius = std::sqrt(-2 * natural_log((words[pair] + 0.5) * 0x1p-32));
    const Point point = on_circle(words[pair + 1] * 0x1p-32);
    result[pair] = radius * point.cosine;
    result[pair + 1] = radius * point.sine;
  }
  return result;
}

}  // namespace

void fill_normal(std::span<float> out, const NormalNumbers& numbers) {
  const PhiloxKey key = derive_key(numbers.seed, {static_cast<std::uint32_t>(numbers.name_hash),
                                                  static_cast<std::uint32_t>(numbers.name_hash >> 32), 0, kRngWeights});
  const auto count = static_cast<std::int64_t>(out.size());
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t element = numbers.offset + i;
    const auto block = static_cast<std::uint64_t>(element / 4);
    const std::array<double, 4> normals = normal_block(
        philox4x32_10({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0}, key));
    for (std::int64_t word = element % 4; word < 4 && i < count; ++word, ++i) {
      out[static_cast<std::size_t>(i)] =
          static_cast<float>(std::fma(normals[static_cast<std::size_t>(word)], numbers.std, numbers.mean));
    }
  }
}

}  // namespace megalith

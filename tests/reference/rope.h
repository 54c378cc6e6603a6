// fp64 reference of rotary position embedding (rotate-half).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/reference/rope_scaling.h"

namespace megalith::reference {

struct RopeSizes {
  std::size_t samples, tokens, heads, dim, rotary_dim;
  double theta;
  RopeScaling scaling = {};
  std::size_t start = 0;
  std::vector<double> positions = {};  // of the rows of all samples; empty: start and the ones that follow
};

struct RopeResult {
  std::vector<double> y, magnitude;
};

inline RopeResult rope(const std::vector<double>& x, const RopeSizes& z, bool backward) {
  RopeResult r{x, x};
  const std::size_t half = z.rotary_dim / 2;
  for (std::size_t row = 0; row < z.samples * z.tokens * z.heads; ++row) {
    const std::size_t token = row / z.heads;
    const double position =
        z.positions.empty() ? static_cast<double>(z.start + token % z.tokens) : std::max(z.positions[token], 0.0);
    for (std::size_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(z.rotary_dim);
      const double frequency = scaled(std::pow(z.theta, exponent), z.scaling);
      const double angle = position * frequency * (backward ? -1 : 1);
      const std::size_t low = row * z.dim + i, high = low + half;
      r.y[low] = x[low] * std::cos(angle) - x[high] * std::sin(angle);
      r.y[high] = x[high] * std::cos(angle) + x[low] * std::sin(angle);
      r.magnitude[low] = std::abs(x[low] * std::cos(angle)) + std::abs(x[high] * std::sin(angle));
      r.magnitude[high] = std::abs(x[high] * std::cos(angle)) + std::abs(x[low] * std::sin(angle));
    }
  }
  return r;
}

}  // namespace megalith::reference

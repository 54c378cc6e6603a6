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
  const double factor = attention_factor(z.scaling);
  for (std::size_t row = 0; row < z.samples * z.tokens * z.heads; ++row) {
    const std::size_t token = row / z.heads;
    const double position =
        z.positions.empty() ? static_cast<double>(z.start + token % z.tokens) : std::max(z.positions[token], 0.0);
    for (std::size_t i = 0; i < half; ++i) {
      const double frequency = scaled_frequency(z.theta, i, z.rotary_dim, z.scaling);
      const double angle = position * frequency * (backward ? -1 : 1);
      const std::size_t low = row * z.dim + i, high = low + half;
      const double cosine = factor * std::cos(angle), sine = factor * std::sin(angle);
      r.y[low] = x[low] * cosine - x[high] * sine;
      r.y[high] = x[high] * cosine + x[low] * sine;
      r.magnitude[low] = std::abs(x[low] * cosine) + std::abs(x[high] * sine);
      r.magnitude[high] = std::abs(x[high] * cosine) + std::abs(x[low] * sine);
    }
  }
  return r;
}

}  // namespace megalith::reference

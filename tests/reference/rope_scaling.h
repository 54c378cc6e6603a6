// fp64 reference of RoPE's scalings. Llama 3.1's by wave lengths, and YaRN's by dimensions, as transformers has them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace megalith::reference {

struct RopeScaling {
  enum class Kind { kLlama3, kLinear, kYarn } kind = Kind::kLlama3;
  double factor = 1;  // 1: not scaled
  double low_freq_factor = 1, high_freq_factor = 4;
  double original_positions = 8192;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double mscale = 1, mscale_all_dim = 0;
  double attention_factor = 0;  // 0: by mscale and mscale_all_dim
};

inline double llama3_frequency(double frequency, const RopeScaling& z) {
  const double length = 2 * std::numbers::pi / frequency;
  if (length < z.original_positions / z.high_freq_factor) return frequency;
  if (length > z.original_positions / z.low_freq_factor) return frequency / z.factor;
  const double smooth = (z.original_positions / length - z.low_freq_factor) / (z.high_freq_factor - z.low_freq_factor);
  return (1 - smooth) * frequency / z.factor + smooth * frequency;
}

inline double yarn_frequency(double theta, std::size_t pair, std::size_t rotary_dim, const RopeScaling& z) {
  const auto dim = static_cast<double>(rotary_dim), i = static_cast<double>(pair);
  const auto correction_dim = [&](double rotations) {
    return dim * std::log(z.original_positions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = correction_dim(z.beta_fast), high = correction_dim(z.beta_slow);
  if (z.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const double extrapolated = 1 - std::clamp((i - low) / (high - low), 0.0, 1.0);
  const double wave = std::pow(theta, 2 * i / dim);
  return 1 / (z.factor * wave) * (1 - extrapolated) + 1 / wave * extrapolated;
}

// Frequency of pair `pair` of rotary_dim / 2.
inline double scaled_frequency(double theta, std::size_t pair, std::size_t rotary_dim, const RopeScaling& z) {
  const double frequency = std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
  if (z.factor == 1) return frequency;
  if (z.kind == RopeScaling::Kind::kLlama3) return llama3_frequency(frequency, z);
  return z.kind == RopeScaling::Kind::kLinear ? frequency / z.factor : yarn_frequency(theta, pair, rotary_dim, z);
}

// Factor of cos and sin.
inline double attention_factor(const RopeScaling& z) {
  if (z.kind != RopeScaling::Kind::kYarn) return 1;
  if (z.attention_factor > 0) return z.attention_factor;
  if (z.factor <= 1) return 1;
  return (0.1 * z.mscale * std::log(z.factor) + 1) / (0.1 * z.mscale_all_dim * std::log(z.factor) + 1);
}

}  // namespace megalith::reference

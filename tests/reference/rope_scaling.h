// fp64 reference of how Llama 3.1 scales RoPE's frequencies, by wave lengths, as transformers has it (rope_type
// llama3).
#pragma once

#include <numbers>

namespace megalith::reference {

struct RopeScaling {
  double factor = 1;  // 1: not scaled
  double low_freq_factor = 1, high_freq_factor = 4;
  double original_positions = 8192;
};

inline double scaled(double frequency, const RopeScaling& z) {
  const double length = 2 * std::numbers::pi / frequency;
  if (length < z.original_positions / z.high_freq_factor) return frequency;
  if (length > z.original_positions / z.low_freq_factor) return frequency / z.factor;
  const double smooth = (z.original_positions / length - z.low_freq_factor) / (z.high_freq_factor - z.low_freq_factor);
  return (1 - smooth) * frequency / z.factor + smooth * frequency;
}

}  // namespace megalith::reference

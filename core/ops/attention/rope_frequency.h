// RoPE's frequency of each pair of a head, on the host and in CUDA kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "core/base/host_device.h"

namespace megalith {

// Llama 3.1's scaling of the positions: rope_type "llama3" of transformers, --use-rope-scaling of Megatron-LM.
struct RopeScaling {
  double factor = 1;  // at least 1; 1 changes nothing
  double low_freq_factor = 1;
  double high_freq_factor = 4;                           // above low_freq_factor
  std::int64_t original_max_position_embeddings = 8192;  // the unscaled model's
  bool operator==(const RopeScaling&) const = default;
};

// Returns radians per position of pair i of `pairs`: f = theta^(-i / pairs), scaled by the number of turns within the
// original positions. Up to low_freq_factor turns the result is f / factor, from high_freq_factor turns on f, and
// between them linear in the turns. In fp64, whereas transformers uses fp32.
MEGALITH_HOST_DEVICE inline double rope_frequency(double theta, int i, int pairs, const RopeScaling& scaling) {
  const double frequency = pow(theta, -static_cast<double>(i) / pairs);
  if (scaling.factor == 1) return frequency;
  const double turns =
      static_cast<double>(scaling.original_max_position_embeddings) * frequency / (2 * std::numbers::pi);
  const double share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  const double kept = fmin(fmax(share, 0.0), 1.0);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace megalith

// RoPE's frequency of each pair of a head, on the host and in CUDA kernels, and its scalings for longer contexts.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "core/base/host_device.h"

namespace megalith {

// Scalings by their rope_type of transformers. kLlama3: Llama 3.1's, --use-rope-scaling of Megatron-LM. kLinear:
// positions are divided by the factor (Chen et al. 2023, arXiv:2306.15595). kYarn: Peng et al. 2023, arXiv:2309.00071.
enum class RopeScalingKind { kNone, kLlama3, kLinear, kYarn };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;  // at least 1; 1 changes no frequency
  // kLlama3: turns within the original positions up to which a frequency is divided, and from which it is kept.
  double low_freq_factor = 1;
  double high_freq_factor = 4;  // above low_freq_factor
  // kLlama3 and kYarn: positions of the unscaled model.
  std::int64_t original_max_position_embeddings = 8192;
  // kYarn: turns from which a frequency is kept, and up to which it is divided.
  double beta_fast = 32;  // at least beta_slow
  double beta_slow = 1;
  bool truncate = true;  // rounds the pairs with beta_fast and beta_slow turns to integers, away from each other
  // kYarn: scale of cos and sin, yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim).
  double mscale = 1;
  double mscale_all_dim = 0;
  double attention_factor = 0;  // above 0: the scale itself
  bool operator==(const RopeScaling&) const = default;
};

// Returns YaRN's growth of attention's scores: 0.1 mscale ln(factor) + 1; 1 for factors up to 1. The softmax scale of
// multi-latent attention is multiplied by the square of yarn_mscale(factor, mscale_all_dim).
double yarn_mscale(double factor, double mscale);

// Returns the factor of cos and sin; 1 except for kYarn.
double rope_attention_factor(const RopeScaling& scaling);

// Frequencies of a head's pairs under a scaling, reduced to what a kernel needs.
struct RopeFrequencies {
  double theta = 10000;
  int pairs = 0;
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;
  // Ends of the ramp between divided and kept frequencies: turns for kLlama3, numbers of pairs for kYarn.
  double low = 0, high = 1;
  double positions = 1;         // kLlama3: positions that the turns refer to
  double attention_factor = 1;  // factor of cos and sin

  // Returns radians per position of pair i: f = theta^(-i / pairs) is kept, f / factor, or a mix of the two. In fp64,
  // whereas transformers uses fp32.
  MEGALITH_HOST_DEVICE double operator[](int i) const {
    const double frequency = pow(theta, -static_cast<double>(i) / pairs);
    if (factor == 1) return frequency;
    double kept = 0;
    if (kind == RopeScalingKind::kLlama3) {
      const double turns = positions * frequency / (2 * std::numbers::pi);
      kept = fmin(fmax((turns - low) / (high - low), 0.0), 1.0);
    } else if (kind == RopeScalingKind::kYarn) {
      kept = 1 - fmin(fmax((i - low) / (high - low), 0.0), 1.0);
    }
    return (1 - kept) * frequency / factor + kept * frequency;
  }
};

RopeFrequencies rope_frequencies(double theta, std::int64_t pairs, const RopeScaling& scaling);

}  // namespace megalith

// Scaling of RoPE as the fp64 reference has it.
#pragma once

#include "core/ops/attention/rope_frequency.h"
#include "tests/reference/rope_scaling.h"

namespace megalith::test {

inline reference::RopeScaling reference_scaling(const RopeScaling& s) {
  using enum reference::RopeScaling::Kind;
  const auto kind = s.kind == RopeScalingKind::kYarn ? kYarn : s.kind == RopeScalingKind::kLinear ? kLinear : kLlama3;
  return {.kind = kind,
          .factor = s.kind == RopeScalingKind::kNone ? 1 : s.factor,
          .low_freq_factor = s.low_freq_factor,
          .high_freq_factor = s.high_freq_factor,
          .original_positions = static_cast<double>(s.original_max_position_embeddings),
          .beta_fast = s.beta_fast,
          .beta_slow = s.beta_slow,
          .truncate = s.truncate,
          .mscale = s.mscale,
          .mscale_all_dim = s.mscale_all_dim,
          .attention_factor = s.attention_factor};
}

}  // namespace megalith::test

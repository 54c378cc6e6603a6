#include "core/ops/attention/rope_frequency.h"

#include <algorithm>

namespace megalith {

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

double rope_attention_factor(const RopeScaling& scaling) {
  if (scaling.kind != RopeScalingKind::kYarn) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  return yarn_mscale(scaling.factor, scaling.mscale) / yarn_mscale(scaling.factor, scaling.mscale_all_dim);
}

RopeFrequencies rope_frequencies(double theta, std::int64_t pairs, const RopeScaling& scaling) {
  RopeFrequencies f{.theta = theta,
                    .pairs = static_cast<int>(pairs),
                    .kind = scaling.kind,
                    .factor = scaling.kind == RopeScalingKind::kNone ? 1 : scaling.factor,
                    .attention_factor = rope_attention_factor(scaling)};
  const auto positions = static_cast<double>(scaling.original_max_position_embeddings);
  if (scaling.kind == RopeScalingKind::kLlama3) {
    f.low = scaling.low_freq_factor;
    f.high = scaling.high_freq_factor;
    f.positions = positions;
  } else if (scaling.kind == RopeScalingKind::kYarn) {
    // Pair whose frequency makes `turns` turns within the original positions.
    const auto pair_with = [&](double turns) {
      return static_cast<double>(pairs) * std::log(positions / (turns * 2 * std::numbers::pi)) / std::log(theta);
    };
    const double low = pair_with(scaling.beta_fast), high = pair_with(scaling.beta_slow);
    // The upper bound is the number of rotated elements less 1, not of pairs, as in the paper's own code.
    f.low = std::max(scaling.truncate ? std::floor(low) : low, 0.0);
    f.high = std::min(scaling.truncate ? std::ceil(high) : high, static_cast<double>(2 * pairs - 1));
    if (f.low == f.high) f.high += 0.001;
  }
  return f;
}

}  // namespace megalith

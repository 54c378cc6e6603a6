// fp64 references of RMSNorm and LayerNorm (centered), with the magnitudes of the sums involved.
#pragma once

#include <cstddef>
#include <vector>

namespace megalith::reference {

struct NormResult {
  std::vector<double> y, mean, rstd;
  std::vector<double> y_magnitude, mean_magnitude, rstd_magnitude;
};

struct NormSettings {
  std::size_t length;  // H
  double eps;
  bool centred;
};

// An empty bias counts as 0.
NormResult norm(const std::vector<double>& x, const std::vector<double>& weight, const std::vector<double>& bias,
                const NormSettings& with);

struct NormGradient {
  std::vector<double> dx, d_weight, d_bias;
  std::vector<double> dx_magnitude, d_weight_magnitude, d_bias_magnitude;
};

// mean may be empty (not centered); d_residual may be empty.
struct NormSaved {
  const std::vector<double>&mean, &rstd, &d_residual;
};

NormGradient norm_gradient(const std::vector<double>& dy, const std::vector<double>& x,
                           const std::vector<double>& weight, const NormSaved& saved);

}  // namespace megalith::reference

// fp64 references of RMSNorm and LayerNorm (centred), with the magnitudes of the sums involved.
#pragma once

#include <cmath>
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
inline NormResult norm(const std::vector<double>& x, const std::vector<double>& weight, const std::vector<double>& bias,
                       const NormSettings& with) {
  NormResult r;
  const double length = static_cast<double>(with.length);
  for (std::size_t first = 0; first < x.size(); first += with.length) {
    double mean = 0, mean_size = 0;
    for (std::size_t j = 0; with.centred && j < with.length; ++j) {
      mean += x[first + j] / length;
      mean_size += std::abs(x[first + j]) / length;
    }
    double variance = 0, variance_size = 0;  // the size: |v| times the error of v = x - mean in units of rounding
    for (std::size_t j = 0; j < with.length; ++j) {
      const double v = x[first + j] - mean;
      variance += v * v / length;
      variance_size += std::abs(v) * (std::abs(x[first + j]) + mean_size) / length;
    }
    const double rstd = 1 / std::sqrt(variance + with.eps);
    const double growth = 1 + variance_size * rstd * rstd;
    for (std::size_t j = 0; j < with.length; ++j) {
      const double add = bias.empty() ? 0 : bias[j];
      r.y.push_back(weight[j] * (x[first + j] - mean) * rstd + add);
      r.y_magnitude.push_back(std::abs(weight[j]) * (std::abs(x[first + j]) + mean_size) * rstd * growth +
                              std::abs(add));
    }
    r.mean.push_back(mean);
    r.mean_magnitude.push_back(mean_size);
    r.rstd.push_back(rstd);
    r.rstd_magnitude.push_back(rstd * growth);
  }
  return r;
}

struct NormGradient {
  std::vector<double> dx, d_weight, d_bias;
  std::vector<double> dx_magnitude, d_weight_magnitude, d_bias_magnitude;
};

// mean may be empty (not centred); d_residual may be empty.
struct NormSaved {
  const std::vector<double>&mean, &rstd, &d_residual;
};

inline NormGradient norm_gradient(const std::vector<double>& dy, const std::vector<double>& x,
                                  const std::vector<double>& weight, const NormSaved& saved) {
  const std::size_t length = weight.size();
  NormGradient r;
  r.d_weight.assign(length, 0);
  r.d_bias = r.d_weight_magnitude = r.d_bias_magnitude = r.d_weight;
  for (std::size_t row = 0; row < saved.rstd.size(); ++row) {
    const bool centred = !saved.mean.empty();
    const double mean = centred ? saved.mean[row] : 0, rstd = saved.rstd[row];
    double mean_g = 0, mean_gh = 0, size_g = 0, size_gh = 0;
    for (std::size_t j = 0; j < length; ++j) {
      const double g = dy[row * length + j] * weight[j], h = (x[row * length + j] - mean) * rstd;
      const double h_size = (std::abs(x[row * length + j]) + std::abs(mean)) * rstd;
      mean_g += g / static_cast<double>(length);
      mean_gh += g * h / static_cast<double>(length);
      size_g += std::abs(g) / static_cast<double>(length);
      size_gh += std::abs(g) * h_size / static_cast<double>(length);
      r.d_weight[j] += dy[row * length + j] * h;
      r.d_bias[j] += dy[row * length + j];
      r.d_weight_magnitude[j] += std::abs(dy[row * length + j]) * h_size;
      r.d_bias_magnitude[j] += std::abs(dy[row * length + j]);
    }
    for (std::size_t j = 0; j < length; ++j) {
      const double g = dy[row * length + j] * weight[j], h = (x[row * length + j] - mean) * rstd;
      const double h_size = (std::abs(x[row * length + j]) + std::abs(mean)) * rstd;
      const double add = saved.d_residual.empty() ? 0 : saved.d_residual[row * length + j];
      r.dx.push_back(rstd * (g - (centred ? mean_g : 0) - h * mean_gh) + add);
      r.dx_magnitude.push_back(rstd * (std::abs(g) + (centred ? size_g : 0) + h_size * size_gh) + std::abs(add));
    }
  }
  return r;
}

}  // namespace megalith::reference

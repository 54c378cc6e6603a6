#include "tests/reference/norm.h"

#include <cmath>

#include "tests/reference/matrix.h"

namespace megalith::reference {

NormResult norm(const std::vector<double>& x, const std::vector<double>& weight, const std::vector<double>& bias,
                const NormSettings& with) {
  const auto rows = as_matrix(x, with.length).array();
  const Eigen::ArrayXd w = as_array(weight);
  Eigen::ArrayXd b = Eigen::ArrayXd::Zero(w.size());
  if (!bias.empty()) b = as_array(bias);
  NormResult r;
  r.y.resize(x.size());
  r.y_magnitude.resize(x.size());
  for (Eigen::Index t = 0; t < rows.rows(); ++t) {
    const Eigen::ArrayXd row = rows.row(t);
    const double mean = with.centred ? row.mean() : 0, mean_size = with.centred ? row.abs().mean() : 0;
    const Eigen::ArrayXd v = row - mean, v_size = row.abs() + mean_size;
    const double rstd = 1 / std::sqrt(v.square().mean() + with.eps);
    // |v| times the error of v in units of rounding, by which the variance and rstd err.
    const double growth = 1 + (v.abs() * v_size).mean() * rstd * rstd;
    as_matrix(r.y, with.length).row(t) = v * rstd * w + b;
    as_matrix(r.y_magnitude, with.length).row(t) = v_size * rstd * growth * w.abs() + b.abs();
    r.mean.push_back(mean);
    r.mean_magnitude.push_back(mean_size);
    r.rstd.push_back(rstd);
    r.rstd_magnitude.push_back(rstd * growth);
  }
  return r;
}

NormGradient norm_gradient(const std::vector<double>& dy, const std::vector<double>& x,
                           const std::vector<double>& weight, const NormSaved& saved) {
  const std::size_t length = weight.size();
  const bool centred = !saved.mean.empty();
  NormGradient r;
  r.dx.resize(x.size());
  r.dx_magnitude.resize(x.size());
  r.d_weight.assign(length, 0);
  r.d_bias = r.d_weight_magnitude = r.d_bias_magnitude = r.d_weight;
  for (std::size_t t = 0; t < saved.rstd.size(); ++t) {
    const auto row_of = [&](const std::vector<double>& from) {
      return Eigen::ArrayXd(as_array(std::span(from).subspan(t * length, length)));
    };
    const double mean = centred ? saved.mean[t] : 0, rstd = saved.rstd[t];
    const Eigen::ArrayXd row = row_of(x), gradient = row_of(dy), g = gradient * as_array(weight);
    const Eigen::ArrayXd h = (row - mean) * rstd, h_size = (row.abs() + std::abs(mean)) * rstd;
    Eigen::ArrayXd dx = rstd * (g - (centred ? g.mean() : 0) - h * (g * h).mean());
    Eigen::ArrayXd dx_size = rstd * (g.abs() + (centred ? g.abs().mean() : 0) + h_size * (g.abs() * h_size).mean());
    if (!saved.d_residual.empty()) {
      dx += row_of(saved.d_residual);
      dx_size += row_of(saved.d_residual).abs();
    }
    as_matrix(r.dx, length).row(static_cast<Eigen::Index>(t)) = dx;
    as_matrix(r.dx_magnitude, length).row(static_cast<Eigen::Index>(t)) = dx_size;
    as_array(r.d_weight) += gradient * h;
    as_array(r.d_bias) += gradient;
    as_array(r.d_weight_magnitude) += gradient.abs() * h_size;
    as_array(r.d_bias_magnitude) += gradient.abs();
  }
  return r;
}

}  // namespace megalith::reference

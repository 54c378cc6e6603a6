// fp64 reference of softmax cross-entropy over one row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace megalith::reference {

inline double log_sum_exp(std::span<const double> x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double value : x) sum += std::exp(value - max);
  return max + std::log(sum);
}

inline double cross_entropy(std::span<const double> logits, std::size_t label) {
  return log_sum_exp(logits) - logits[label];
}

inline std::vector<double> cross_entropy_gradient(std::span<const double> logits, std::size_t label) {
  const double lse = log_sum_exp(logits);
  std::vector<double> gradient;
  for (const double value : logits) gradient.push_back(std::exp(value - lse));
  gradient[label] -= 1;
  return gradient;
}

}  // namespace megalith::reference

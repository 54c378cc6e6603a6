#include "tests/reference/cross_entropy.h"

#include <cmath>

#include "tests/reference/matrix.h"

namespace megalith::reference {

double log_sum_exp(std::span<const double> x) {
  const double max = as_array(x).maxCoeff();
  return max + std::log((as_array(x) - max).exp().sum());
}

double cross_entropy(std::span<const double> logits, std::size_t label) { return log_sum_exp(logits) - logits[label]; }

std::vector<double> cross_entropy_gradient(std::span<const double> logits, std::size_t label) {
  std::vector<double> gradient(logits.size());
  as_array(gradient) = (as_array(logits) - log_sum_exp(logits)).exp();
  gradient[label] -= 1;
  return gradient;
}

}  // namespace megalith::reference

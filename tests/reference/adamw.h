// fp64 reference of one parameter under AdamW, from Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2: bias-corrected
// moments, then the step. The decay applies to the weight ahead of the step, scaled by the learning rate.
#pragma once

#include <cmath>
#include <cstdint>

namespace megalith::reference {

struct AdamState {
  double weight = 0, first = 0, second = 0;
};

struct AdamSettings {
  double learning_rate, beta1, beta2, eps, weight_decay;
};

inline AdamState adamw(AdamState s, double gradient, std::int64_t step, const AdamSettings& with) {
  s.first = with.beta1 * s.first + (1 - with.beta1) * gradient;
  s.second = with.beta2 * s.second + (1 - with.beta2) * gradient * gradient;
  const double first_hat = s.first / (1 - std::pow(with.beta1, static_cast<double>(step)));
  const double second_hat = s.second / (1 - std::pow(with.beta2, static_cast<double>(step)));
  s.weight -= with.learning_rate * with.weight_decay * s.weight;
  s.weight -= with.learning_rate * first_hat / (std::sqrt(second_hat) + with.eps);
  return s;
}

}  // namespace megalith::reference

// fp64 references of the activation functions, from their definitions.
#pragma once

#include <cmath>
#include <numbers>

namespace megalith::reference {

inline double gelu_tanh_argument(double x) { return std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }
inline double gelu_tanh_argument_slope(double x) {
  return std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
}

inline double gelu(double x, bool exact) {
  if (exact) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  return 0.5 * x * (1 + std::tanh(gelu_tanh_argument(x)));
}

inline double gelu_slope(double x, bool exact) {
  if (exact) {
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * density;
  }
  const double t = std::tanh(gelu_tanh_argument(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_tanh_argument_slope(x);
}

inline double squared_relu(double x) { return x > 0 ? x * x : 0; }
inline double squared_relu_slope(double x) { return x > 0 ? 2 * x : 0; }

inline double silu(double x) { return x / (1 + std::exp(-x)); }

inline double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s + x * s * (1 - s);
}

}  // namespace megalith::reference

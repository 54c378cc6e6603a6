// fp64 reference of the router: choices by sorting everything, gradients by the chain of Jacobians.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

namespace megalith::reference {

struct RouterSettings {
  bool is_sigmoid = false;
  bool over_all = false;  // softmax ahead of the choice
  double scaling = 1;
  std::size_t top_k = 1;
  std::size_t groups = 1, open_groups = 1;
};

using RouterValues = std::vector<double>;
using RouterExperts = std::vector<std::size_t>;

inline RouterValues softmax(const RouterValues& x) {
  const double max = *std::max_element(x.begin(), x.end());
  RouterValues y;
  for (const double value : x) y.push_back(std::exp(value - max));
  const double sum = std::accumulate(y.begin(), y.end(), 0.0);
  for (double& value : y) value /= sum;
  return y;
}

inline RouterValues sigmoid(const RouterValues& x) {
  RouterValues y;
  for (const double value : x) y.push_back(1 / (1 + std::exp(-value)));
  return y;
}

inline RouterValues normalised(RouterValues x) {
  const double sum = std::accumulate(x.begin(), x.end(), 1e-20);
  for (double& value : x) value /= sum;
  return x;
}

inline RouterValues gathered(const RouterValues& x, const RouterExperts& experts) {
  RouterValues y;
  for (const std::size_t e : experts) y.push_back(x[e]);
  return y;
}

inline RouterValues scattered(const RouterValues& d, const RouterExperts& experts, std::size_t count) {
  RouterValues y(count);
  for (std::size_t k = 0; k < experts.size(); ++k) y[experts[k]] += d[k];
  return y;
}

// Gradients of the three functions by their Jacobians: dy_i / dx_j.
inline RouterValues softmax_gradient(const RouterValues& x, const RouterValues& dy) {
  const RouterValues y = softmax(x);
  RouterValues dx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) dx[j] += dy[i] * y[i] * ((i == j ? 1 : 0) - y[j]);
  }
  return dx;
}

inline RouterValues normalised_gradient(const RouterValues& x, const RouterValues& dy) {
  const double sum = std::accumulate(x.begin(), x.end(), 1e-20);
  RouterValues dx(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < x.size(); ++j) dx[j] += dy[i] * ((i == j ? 1 / sum : 0) - x[i] / (sum * sum));
  }
  return dx;
}

inline RouterValues sigmoid_gradient(const RouterValues& x, RouterValues dy) {
  for (std::size_t i = 0; i < x.size(); ++i) dy[i] *= std::exp(-x[i]) / std::pow(1 + std::exp(-x[i]), 2);
  return dy;
}

// Indices of the highest values, descending; ties choose the first. `gap`: the smallest deciding difference.
inline RouterExperts highest(const RouterValues& x, std::size_t count, double& gap) {
  RouterExperts order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] > x[b]; });
  for (std::size_t i = 0; i + 1 < x.size() && i < count; ++i) gap = std::min(gap, x[order[i]] - x[order[i + 1]]);
  order.resize(count);
  return order;
}

struct RouterChoice {
  RouterExperts experts;
  double gap = std::numeric_limits<double>::infinity();
};

// `bias` may be empty.
inline RouterChoice choose_experts(const RouterValues& logits, const RouterValues& bias, const RouterSettings& with) {
  RouterValues score = with.is_sigmoid ? sigmoid(logits) : with.over_all ? softmax(logits) : logits;
  for (std::size_t e = 0; e < bias.size(); ++e) score[e] += bias[e];
  RouterChoice result;
  if (with.open_groups < with.groups) {
    const std::size_t size = logits.size() / with.groups, best = with.top_k / with.open_groups;
    RouterValues of_group;
    for (std::size_t g = 0; g < with.groups; ++g) {
      RouterValues inside(score.begin() + static_cast<std::ptrdiff_t>(g * size),
                          score.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::sort(inside.rbegin(), inside.rend());
      of_group.push_back(std::accumulate(inside.begin(), inside.begin() + static_cast<std::ptrdiff_t>(best), 0.0));
    }
    const RouterExperts open = highest(of_group, with.open_groups, result.gap);
    for (std::size_t e = 0; e < score.size(); ++e) {
      if (std::find(open.begin(), open.end(), e / size) == open.end()) score[e] = -1e30;
    }
  }
  result.experts = highest(score, with.top_k, result.gap);
  return result;
}

inline RouterValues router_weights(const RouterValues& logits, const RouterExperts& experts,
                                   const RouterSettings& with) {
  RouterValues weight = with.is_sigmoid ? sigmoid(gathered(logits, experts))
                        : with.over_all ? gathered(softmax(logits), experts)
                                        : softmax(gathered(logits, experts));
  if (with.is_sigmoid && experts.size() > 1) weight = normalised(weight);
  for (double& w : weight) w *= with.scaling;
  return weight;
}

inline RouterValues router_weights_gradient(const RouterValues& logits, const RouterExperts& experts,
                                            const RouterSettings& with, RouterValues d) {
  for (double& value : d) value *= with.scaling;
  const RouterValues chosen = gathered(logits, experts);
  if (with.is_sigmoid) {
    if (experts.size() > 1) d = normalised_gradient(sigmoid(chosen), d);
    return scattered(sigmoid_gradient(chosen, d), experts, logits.size());
  }
  if (with.over_all) return softmax_gradient(logits, scattered(d, experts, logits.size()));
  return scattered(softmax_gradient(chosen, d), experts, logits.size());
}

// Loss of a token: sum over e of counts[e] P(e).
inline double balance_loss(const RouterValues& logits, const RouterValues& counts, bool is_sigmoid) {
  const RouterValues p = is_sigmoid ? normalised(sigmoid(logits)) : softmax(logits);
  return std::inner_product(p.begin(), p.end(), counts.begin(), 0.0);
}

inline RouterValues balance_loss_gradient(const RouterValues& logits, const RouterValues& counts, bool is_sigmoid) {
  if (!is_sigmoid) return softmax_gradient(logits, counts);
  return sigmoid_gradient(logits, normalised_gradient(sigmoid(logits), counts));
}

// Loss of a token: the square of the logarithm of the sum of exponentials.
inline double z_loss(const RouterValues& logits) {
  double sum = 0;
  for (const double x : logits) sum += std::exp(x);
  return std::pow(std::log(sum), 2);
}

inline RouterValues z_loss_gradient(const RouterValues& logits) {
  double sum = 0;
  for (const double x : logits) sum += std::exp(x);
  RouterValues d;
  for (const double x : logits) d.push_back(2 * std::log(sum) * std::exp(x) / sum);
  return d;
}

}  // namespace megalith::reference

// fp64 reference of a layer of experts, token by token, forward alone: its gradients are difference quotients, at fixed
// choices and counts, as in the layer's.
//   T: tokens, H: hidden size, E: experts, F: FFN size of an expert
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/reference/router.h"

namespace megalith::reference {

struct MoeSettings {
  RouterSettings router;
  std::size_t hidden = 0, experts = 0, ffn = 0, shared_ffn = 0;
  double epsilon = 1e-5;
  double aux_coeff = 0, z_coeff = 0;
  std::size_t balanced_tokens = 0;  // of a piece over which the tokens are balanced
};

// By the end of the logical name: "router.weight".
using MoeWeights = std::map<std::string, std::vector<double>>;

struct MoeRun {
  std::vector<double> out, residual;                     // [T, H]
  double aux = 0, z = 0;                                 // sums over tokens
  double gap = std::numeric_limits<double>::infinity();  // the least difference that decided on an expert
  std::vector<RouterExperts> choices;                    // of each token
};

inline std::vector<double> times_rows(const std::vector<double>& x, const std::vector<double>& w, std::size_t first,
                                      std::size_t count) {
  std::vector<double> y(count);
  for (std::size_t o = 0; o < count; ++o) {
    for (std::size_t i = 0; i < x.size(); ++i) y[o] += x[i] * w[(first + o) * x.size() + i];
  }
  return y;
}

// One token through expert `e` of those whose matrices lie one below the other.
inline std::vector<double> expert(const std::vector<double>& x, const MoeWeights& w, const std::string& prefix,
                                  std::size_t e, std::size_t ffn) {
  const std::vector<double> gate = times_rows(x, w.at(prefix + "linear_gate.weight"), e * ffn, ffn);
  std::vector<double> y = times_rows(x, w.at(prefix + "linear_up.weight"), e * ffn, ffn);
  for (std::size_t f = 0; f < ffn; ++f) y[f] *= gate[f] / (1 + std::exp(-gate[f]));
  return times_rows(y, w.at(prefix + "linear_fc2.weight"), e * x.size(), x.size());
}

// `choices` fixed, or empty: the router's.
inline MoeRun run_moe(const MoeSettings& with, const MoeWeights& w, const std::vector<double>& hidden,
                      const std::vector<double>& residual, const std::vector<RouterExperts>& choices = {}) {
  const std::size_t tokens = hidden.size() / with.hidden;
  MoeRun run;
  std::vector<std::vector<double>> logits;
  for (std::size_t t = 0; t < tokens; ++t) {
    std::vector<double> x(with.hidden);
    double squares = 0;
    for (std::size_t i = 0; i < with.hidden; ++i) {
      x[i] = hidden[t * with.hidden + i] + residual[t * with.hidden + i];
      squares += x[i] * x[i];
    }
    run.residual.insert(run.residual.end(), x.begin(), x.end());
    const double scale = 1 / std::sqrt(squares / static_cast<double>(with.hidden) + with.epsilon);
    for (std::size_t i = 0; i < with.hidden; ++i) x[i] *= scale * w.at("pre_mlp_layernorm.weight")[i];
    logits.push_back(times_rows(x, w.at("router.weight"), 0, with.experts));
    const RouterChoice choice = choose_experts(logits.back(), {}, with.router);
    run.gap = std::min(run.gap, choice.gap);
    run.choices.push_back(choices.empty() ? choice.experts : choices[t]);
    const std::vector<double> weights = router_weights(logits.back(), run.choices.back(), with.router);
    std::vector<double> out(with.hidden);
    for (std::size_t k = 0; k < weights.size(); ++k) {
      const std::vector<double> y = expert(x, w, "experts.", run.choices.back()[k], with.ffn);
      for (std::size_t i = 0; i < with.hidden; ++i) out[i] += weights[k] * y[i];
    }
    if (with.shared_ffn > 0) {
      const std::vector<double> y = expert(x, w, "shared_experts.", 0, with.shared_ffn);
      const auto gate = w.find("shared_experts.gate_weight");
      const double scaled = gate == w.end() ? 1 : 1 / (1 + std::exp(-times_rows(x, gate->second, 0, 1)[0]));
      for (std::size_t i = 0; i < with.hidden; ++i) out[i] += scaled * y[i];
    }
    run.out.insert(run.out.end(), out.begin(), out.end());
    run.z += with.z_coeff * z_loss(logits.back());
  }
  const auto n = static_cast<double>(with.balanced_tokens), k = static_cast<double>(with.router.top_k);
  for (std::size_t first = 0; with.aux_coeff != 0 && first < tokens; first += with.balanced_tokens) {
    RouterValues counts(with.experts);
    for (std::size_t t = first; t < first + with.balanced_tokens; ++t) {
      for (const std::size_t e : run.choices[t]) ++counts[e];
    }
    for (std::size_t t = first; t < first + with.balanced_tokens; ++t) {
      run.aux += with.aux_coeff * static_cast<double>(with.experts) / (k * n) *
                 balance_loss(logits[t], counts, with.router.is_sigmoid);
    }
  }
  return run;
}

}  // namespace megalith::reference

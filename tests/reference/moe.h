// fp64 reference of a layer of experts, token by token, forward only. Its gradients are difference quotients, at fixed
// choices, counts and dropped rows, as in the layer's.
//   T: tokens, H: hidden size, E: experts, F: FFN size of an expert
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/reference/router.h"

namespace megalith::reference {

struct MoeSettings {
  RouterSettings router;
  std::size_t hidden = 0, experts = 0, ffn = 0, shared_ffn = 0;
  double (*activation)(double) = nullptr;  // of experts without a gate
  bool zero_centered = false;              // the norm's factor is 1 + weight
  double epsilon = 1e-5;
  double z_coeff = 0;
  // A loss over each piece of `tokens` tokens; the rows of `earlier` tokens are added.
  struct Balance {
    double coeff = 0;
    std::size_t tokens = 0;
    RouterValues earlier = {};
  };
  std::vector<Balance> balances;
  std::size_t capacity = 0;  // rows of an expert; 0: any number
  bool drops_last = false;
  RouterValues bias;
  std::vector<RouterValues> own_logits;  // replace the router's logits, for each token
};

// Weights by the suffix of the logical name: "router.weight".
using MoeWeights = std::map<std::string, std::vector<double>>;

struct MoeRun {
  std::vector<double> out, residual;                     // [T, H]
  double aux = 0, z = 0;                                 // sums over tokens
  double gap = std::numeric_limits<double>::infinity();  // the least difference that decided on an expert
  std::vector<RouterExperts> choices;                    // for each token
  std::vector<std::vector<bool>> kept;                   // for each choice of each token
  RouterValues counts;                                   // counts of the choices, by expert
};

inline std::vector<double> times_rows(const std::vector<double>& x, const std::vector<double>& w, std::size_t first,
                                      std::size_t count) {
  std::vector<double> y(count);
  for (std::size_t o = 0; o < count; ++o) {
    for (std::size_t i = 0; i < x.size(); ++i) y[o] += x[i] * w[(first + o) * x.size() + i];
  }
  return y;
}

inline void add_rows_of(std::vector<double>& x, const MoeWeights& w, const std::string& bias, std::size_t first) {
  const auto found = w.find(bias);
  for (std::size_t i = 0; found != w.end() && i < x.size(); ++i) x[i] += found->second[first + i];
}

// One token through expert `e` of those whose matrices lie one below the other.
inline std::vector<double> expert(const std::vector<double>& x, const MoeWeights& w, const std::string& prefix,
                                  std::size_t e, std::size_t ffn, double (*activation)(double)) {
  const auto fc1 = [&](const std::string& name) {
    std::vector<double> h = times_rows(x, w.at(prefix + name + ".weight"), e * ffn, ffn);
    add_rows_of(h, w, prefix + name + ".bias", e * ffn);
    return h;
  };
  std::vector<double> y;
  if (activation != nullptr) {
    y = fc1("linear_fc1");
    for (double& value : y) value = activation(value);
  } else {
    const std::vector<double> gate = fc1("linear_gate");
    y = fc1("linear_up");
    for (std::size_t f = 0; f < ffn; ++f) y[f] *= gate[f] / (1 + std::exp(-gate[f]));
  }
  std::vector<double> out = times_rows(y, w.at(prefix + "linear_fc2.weight"), e * x.size(), x.size());
  add_rows_of(out, w, prefix + "linear_fc2.bias", e * x.size());
  return out;
}

// Each expert keeps the choices of the highest weights, or the first; without a capacity, all.
inline std::vector<std::vector<bool>> keep(const MoeSettings& with, const std::vector<RouterExperts>& choices,
                                           const std::vector<RouterValues>& weights, double& gap) {
  std::vector<std::vector<bool>> kept;
  for (const RouterExperts& of_token : choices) kept.emplace_back(of_token.size(), with.capacity == 0);
  for (std::size_t e = 0; with.capacity > 0 && e < with.experts; ++e) {
    std::vector<std::pair<double, std::pair<std::size_t, std::size_t>>> rows;
    for (std::size_t t = 0; t < choices.size(); ++t) {
      for (std::size_t k = 0; k < choices[t].size(); ++k) {
        if (choices[t][k] == e) rows.push_back({with.drops_last ? 0 : -weights[t][k], {t, k}});
      }
    }
    std::sort(rows.begin(), rows.end());
    if (!with.drops_last && rows.size() > with.capacity)
      gap = std::min(gap, rows[with.capacity].first - rows[with.capacity - 1].first);
    for (std::size_t r = 0; r < std::min(rows.size(), with.capacity); ++r)
      kept[rows[r].second.first][rows[r].second.second] = true;
  }
  return kept;
}

inline double balance_losses(const MoeSettings& with, const std::vector<RouterValues>& logits,
                             const std::vector<RouterExperts>& choices) {
  double sum = 0;
  for (const MoeSettings::Balance& loss : with.balances) {
    for (std::size_t first = 0; first < logits.size(); first += loss.tokens) {
      RouterValues counts = loss.earlier.empty() ? RouterValues(with.experts) : loss.earlier;
      for (std::size_t t = first; t < first + loss.tokens; ++t) {
        for (const std::size_t e : choices[t]) ++counts[e];
      }
      const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
      for (std::size_t t = first; t < first + loss.tokens; ++t) {
        sum += loss.coeff * static_cast<double>(with.experts) / all *
               balance_loss(logits[t], counts, with.router.is_sigmoid);
      }
    }
  }
  return sum;
}

// Adds the experts' and the shared expert's output of a token.
inline void add_experts(const MoeSettings& with, const MoeWeights& w, const RouterValues& x,
                        const RouterValues& weights, MoeRun& run, std::size_t t) {
  std::vector<double> out(with.hidden);
  for (std::size_t k = 0; k < weights.size(); ++k) {
    if (!run.kept[t][k]) continue;
    const std::vector<double> y = expert(x, w, "experts.", run.choices[t][k], with.ffn, with.activation);
    for (std::size_t i = 0; i < with.hidden; ++i) out[i] += weights[k] * y[i];
  }
  if (with.shared_ffn > 0) {
    const std::vector<double> y = expert(x, w, "shared_experts.", 0, with.shared_ffn, with.activation);
    const auto gate = w.find("shared_experts.gate_weight");
    const double scaled = gate == w.end() ? 1 : 1 / (1 + std::exp(-times_rows(x, gate->second, 0, 1)[0]));
    for (std::size_t i = 0; i < with.hidden; ++i) out[i] += scaled * y[i];
  }
  run.out.insert(run.out.end(), out.begin(), out.end());
}

// With the choices and dropped rows of another run, or the router's own.
inline MoeRun run_moe(const MoeSettings& with, const MoeWeights& w, const std::vector<double>& hidden,
                      const std::vector<double>& residual, const MoeRun* fixed = nullptr) {
  const std::size_t tokens = hidden.size() / with.hidden;
  MoeRun run;
  std::vector<RouterValues> normed, logits, weights;
  for (std::size_t t = 0; t < tokens; ++t) {
    RouterValues x(with.hidden);
    double squares = 0;
    for (std::size_t i = 0; i < with.hidden; ++i) {
      x[i] = hidden[t * with.hidden + i] + residual[t * with.hidden + i];
      squares += x[i] * x[i];
    }
    run.residual.insert(run.residual.end(), x.begin(), x.end());
    const double scale = 1 / std::sqrt(squares / static_cast<double>(with.hidden) + with.epsilon);
    for (std::size_t i = 0; i < with.hidden; ++i)
      x[i] *= scale * (w.at("pre_mlp_layernorm.weight")[i] + (with.zero_centered ? 1 : 0));
    logits.push_back(with.own_logits.empty() ? times_rows(x, w.at("router.weight"), 0, with.experts)
                                             : with.own_logits[t]);
    const RouterChoice choice = choose_experts(logits.back(), with.bias, with.router);
    run.gap = std::min(run.gap, choice.gap);
    run.choices.push_back(fixed == nullptr ? choice.experts : fixed->choices[t]);
    weights.push_back(router_weights(logits.back(), run.choices.back(), with.router));
    run.z += with.z_coeff * z_loss(logits.back());
    normed.push_back(std::move(x));
  }
  run.kept = fixed == nullptr ? keep(with, run.choices, weights, run.gap) : fixed->kept;
  for (std::size_t t = 0; t < tokens; ++t) add_experts(with, w, normed[t], weights[t], run, t);
  run.aux = balance_losses(with, logits, run.choices);
  run.counts.resize(with.experts);
  for (const RouterExperts& of_token : run.choices) {
    for (const std::size_t e : of_token) ++run.counts[e];
  }
  return run;
}

}  // namespace megalith::reference

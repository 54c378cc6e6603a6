// fp64 reference of the filtered distribution that sampling draws from, by sorting everything.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace megalith::reference {

struct SamplingSettings {
  double temperature;
  std::size_t top_k;  // 0: off
  double top_p;       // 0 or 1: off
};

// The probability of each token.
inline std::vector<double> sampling_distribution(const std::vector<double>& logits, const SamplingSettings& with) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  const double max = logits[order[0]];
  std::vector<double> probability(logits.size());
  const std::size_t kept = with.top_k == 0 ? logits.size() : std::min(with.top_k, logits.size());
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    probability[order[i]] = std::exp((logits[order[i]] - max) / with.temperature);
    total += probability[order[i]];
  }
  if (with.top_p > 0 && with.top_p < 1) {
    double sum = 0;
    for (std::size_t i = 0; i < kept; ++i) {
      if (sum >= with.top_p * total) probability[order[i]] = 0;
      sum += probability[order[i]];
    }
    total = std::accumulate(probability.begin(), probability.end(), 0.0);
  }
  for (double& p : probability) p /= total;
  return probability;
}

}  // namespace megalith::reference

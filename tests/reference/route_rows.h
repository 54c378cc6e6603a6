// Plain reference of the routing of rows to experts and back: a stable sort of the choices, and fp64 sums.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace megalith::reference {

struct Routes {
  std::vector<double> offsets, token, position;  // token: -1 for rows of no expert
};

// choice: `choices` experts for each token; -1: none.
inline Routes route(const std::vector<double>& choice, std::size_t choices, std::size_t experts) {
  std::vector<std::size_t> slots;
  for (std::size_t i = 0; i < choice.size(); ++i) {
    if (choice[i] >= 0) slots.push_back(i);
  }
  std::stable_sort(slots.begin(), slots.end(), [&](std::size_t a, std::size_t b) { return choice[a] < choice[b]; });
  Routes routes{.offsets = {}, .token = choice, .position = choice};
  std::fill(routes.token.begin(), routes.token.end(), -1.0);
  for (std::size_t row = 0; row < slots.size(); ++row) {
    routes.token[row] = static_cast<double>(slots[row] / choices);
    routes.position[slots[row]] = static_cast<double>(row);
  }
  for (std::size_t e = 0; e <= experts; ++e) {
    const auto below = [&](std::size_t slot) { return choice[slot] < static_cast<double>(e); };
    const auto first = std::partition_point(slots.begin(), slots.end(), below);
    routes.offsets.push_back(static_cast<double>(first - slots.begin()));
  }
  return routes;
}

// The rows x[index], one after the other.
inline std::vector<double> rows_at(const std::vector<double>& x, std::size_t columns,
                                   const std::vector<double>& index) {
  std::vector<double> y;
  for (const double i : index) {
    const auto from = x.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(i) * columns);
    y.insert(y.end(), from, from + static_cast<std::ptrdiff_t>(columns));
  }
  return y;
}

// y[t] = sum over k of x[position[t, k]] but for -1.
inline std::vector<double> sum_rows_at(const std::vector<double>& x, std::size_t columns,
                                       const std::vector<double>& position, std::size_t tokens) {
  std::vector<double> y(tokens * columns);
  for (std::size_t i = 0; i < position.size(); ++i) {
    const std::size_t token = i / (position.size() / tokens);
    for (std::size_t c = 0; c < columns && position[i] >= 0; ++c)
      y[token * columns + c] += x[static_cast<std::size_t>(position[i]) * columns + c];
  }
  return y;
}

}  // namespace megalith::reference

// Plain reference of the routing of rows to ranks and back, with searches and fp64 sums.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace megalith::reference {

using RankValues = std::vector<double>;

// Ranks; groups of `copies` neighbors have the same `each` experts.
struct ExpertRanks {
  std::size_t ranks, each, copies;

  bool has(std::size_t rank, double expert) const {
    const std::size_t first = rank / copies * each;
    return expert >= static_cast<double>(first) && expert < static_cast<double>(first + each);
  }
};

// choice: `choices` experts for each token; -1: none.
inline RankValues chosen_ranks(const RankValues& choice, std::size_t choices, std::size_t tokens,
                               const ExpertRanks& of) {
  RankValues chosen;
  for (std::size_t t = 0; t < tokens; ++t) {
    const auto first = choice.begin() + static_cast<std::ptrdiff_t>(t * choices);
    for (std::size_t p = 0; p < of.ranks; ++p) {
      const bool is_chosen = std::any_of(first, first + static_cast<std::ptrdiff_t>(choices),
                                         [&](double expert) { return of.has(p, expert); });
      chosen.push_back(is_chosen ? static_cast<double>(p) : -1.0);
    }
  }
  return chosen;
}

// Rows of the experts from `first` on, expert by expert, up to the capacity.
struct PartOfRoutes {
  RankValues offsets{0}, token, position;
  double wanted = 0;
};

inline PartOfRoutes route_part(const RankValues& choice, std::size_t choices, std::size_t first, std::size_t experts,
                               std::size_t room) {
  PartOfRoutes routes;
  routes.position.assign(choice.size(), -1.0);
  for (std::size_t e = first; e < first + experts; ++e) {
    for (std::size_t slot = 0; slot < choice.size(); ++slot) {
      if (choice[slot] != static_cast<double>(e)) continue;
      routes.wanted += 1;
      if (routes.token.size() == room) continue;
      routes.position[slot] = static_cast<double>(routes.token.size());
      routes.token.push_back(static_cast<double>(slot / choices));
    }
    routes.offsets.push_back(static_cast<double>(routes.token.size()));
  }
  return routes;
}

// [tokens, groups columns]: for each group of `each` experts from `first` on, the sum of the rows of its choices.
struct ExpertGroups {
  std::size_t groups, each, first;
};

inline RankValues group_sums(const RankValues& x, std::size_t columns, const RankValues& position,
                             const RankValues& choice, std::size_t tokens, const ExpertGroups& of) {
  RankValues sums(tokens * of.groups * columns);
  for (std::size_t slot = 0; slot < position.size() && columns > 0; ++slot) {
    if (position[slot] < 0) continue;
    const std::size_t token = slot / (position.size() / tokens);
    const std::size_t group = (static_cast<std::size_t>(choice[slot]) - of.first) / of.each;
    for (std::size_t c = 0; c < columns; ++c)
      sums[(token * of.groups + group) * columns + c] += x[static_cast<std::size_t>(position[slot]) * columns + c];
  }
  return sums;
}

// The `parts` parts of each row of [rows, parts columns] added: [rows, columns].
inline RankValues sum_parts(const RankValues& x, std::size_t parts, std::size_t columns) {
  RankValues y(x.size() / parts);
  for (std::size_t i = 0; i < x.size(); ++i) y[i / (parts * columns) * columns + i % columns] += x[i];
  return y;
}

// x: [rows, choices], position: [tokens, ranks].
inline RankValues returned_weights(const RankValues& x, const RankValues& choice, const RankValues& position,
                                   std::size_t choices, const ExpertRanks& of) {
  RankValues weights;
  for (std::size_t slot = 0; slot < choice.size(); ++slot) {
    double sum = 0;
    for (std::size_t p = 0; p < of.ranks; ++p) {
      const double row = position[slot / choices * of.ranks + p];
      if (row >= 0 && of.has(p, choice[slot])) sum += x[static_cast<std::size_t>(row) * choices + slot % choices];
    }
    weights.push_back(sum);
  }
  return weights;
}

}  // namespace megalith::reference

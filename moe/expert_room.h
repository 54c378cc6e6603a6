// Capacity of a rank for tokens of other ranks. Memory is planned before tokens are routed. Capacity is a factor times
// the mean for uniform choices; a step that needs more is planned again.
//   T: tokens of a rank; K: choices of a token; E: experts; E_local: experts of a rank; P: ranks that hold the experts
//   copies: ranks that hold the same expert, each a part of its columns
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace megalith {

struct ExpertRoom {
  std::int64_t arrived = 0;  // tokens that arrive at a rank, including its own
  std::int64_t rows = 0;     // rows of its experts
  friend bool operator==(const ExpertRoom&, const ExpertRoom&) = default;
};

struct RoutedSizes {
  std::int64_t tokens = 0;   // T
  std::int64_t choices = 1;  // K
  std::int64_t experts = 1;  // E
  std::int64_t ranks = 1;    // P
  std::int64_t copies = 1;
  bool all_arrive = false;  // each token arrives at every rank, for any choices

  std::int64_t local_experts() const { return experts / (ranks / copies); }  // E_local
};

struct MeanRows {
  double arrived = 0, rows = 0;
};

// Mean for uniformly random choices. Unless all arrive, a token arrives if at least one of its K distinct experts is
// local.
inline MeanRows mean_rows(const RoutedSizes& s) {
  double elsewhere = s.all_arrive ? 0 : 1;
  for (std::int64_t i = 0; i < s.choices; ++i) {
    const std::int64_t others = std::max<std::int64_t>(s.experts - s.local_experts() - i, 0);
    elsewhere *= static_cast<double>(others) / static_cast<double>(s.experts - i);
  }
  return {.arrived = static_cast<double>(s.ranks * s.tokens) * (1 - elsewhere),
          .rows = static_cast<double>(s.copies * s.tokens * s.choices)};
}

// Maximum capacity, which never overflows.
inline ExpertRoom max_room(const RoutedSizes& s) {
  const std::int64_t tokens = s.ranks * s.tokens;
  return {.arrived = tokens, .rows = tokens * std::min(s.choices, s.local_experts())};
}

// Capacity for a `factor` of --moe-expert-rank-capacity-factor.
inline ExpertRoom expert_room(const RoutedSizes& s, double factor) {
  constexpr double kUnit = 128;  // rows of a tile of the grouped GEMM
  const auto room = [factor](double mean, std::int64_t most) {
    const double wanted = std::ceil(std::ceil(factor * mean) / kUnit) * kUnit;
    return wanted < static_cast<double>(most) ? static_cast<std::int64_t>(wanted) : most;
  };
  const MeanRows mean = mean_rows(s);
  const ExpertRoom most = max_room(s);
  return {.arrived = s.all_arrive ? most.arrived : room(mean.arrived, most.arrived),
          .rows = room(mean.rows, most.rows)};
}

// Factor after an overflow of `factor`: 10% above both the old factor and the need.
inline double larger_factor(const RoutedSizes& s, const ExpertRoom& needed, double factor) {
  const MeanRows mean = mean_rows(s);
  return 1.1 * std::max({factor, static_cast<double>(needed.arrived) / mean.arrived,
                         static_cast<double>(needed.rows) / mean.rows});
}

}  // namespace megalith

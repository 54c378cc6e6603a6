// Shared code of the CPU kernels on routed rows: checked tables of routes, and the number of live rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ops/data_faults.h"
#include "core/tensor/tensor.h"

namespace megalith {

inline std::int64_t bounded_rows(const Tensor& x) {
  return x.bound != nullptr ? std::min<std::int64_t>(*x.bound, x.size(0)) : x.size(0);
}

inline void check_route(std::int64_t i, std::int64_t value, std::int64_t low, std::int64_t limit) {
  if (value >= low && value < limit) return;
  const std::int64_t values[] = {i, value, low, limit};
  raise_bad_route(values);
}

// Returns the first `count` entries of a table, after checking low <= entry < limit.
inline const std::int32_t* checked(const Tensor& table, std::int64_t count, std::int64_t low, std::int64_t limit) {
  const auto* entry = table.as<const std::int32_t>();
  for (std::int64_t i = 0; i < count; ++i) check_route(i, entry[i], low, limit);
  return entry;
}

// Returns the checked row of each choice, -1: none. `x` holds the rows.
inline const std::int32_t* checked_positions(const Tensor& position, const Tensor& x) {
  return checked(position, bounded_rows(position) * position.size(1), -1, bounded_rows(x));
}

}  // namespace megalith

// Sum of the terms of a block of columns, on the CPU, in the order of RoutedSwigluBackward.
#pragma once

#include <array>
#include <cstddef>

#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith {

// Each of eight packs adds its terms in order; then packs at distances 1, 2 and 4 are added. `terms` has
// kPartialColumns values.
inline float sum_of_packs(const float* terms) {
  std::array<float, 8> packs{};
  for (std::size_t c = 0; c < kPartialColumns; ++c) packs[c / 8] += terms[c];
  for (std::size_t step = 1; step < 8; step *= 2) {
    for (std::size_t p = 0; p < 8; p += 2 * step) packs[p] += packs[p + step];
  }
  return packs[0];
}

}  // namespace megalith

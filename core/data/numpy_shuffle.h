// Bit-equal implementation of numpy.random.RandomState(seed).shuffle, which Megatron's sample order depends on.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

#include "core/base/error.h"

namespace megalith {

class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : generator_(seed) {}

  // Fisher-Yates shuffle from the end. Each index is a word masked to the bits of the bound, drawn again while above
  // it. numpy uses 64-bit words for bounds beyond 32 bits; such arrays are rejected here.
  template <class Value>
  void shuffle(std::span<Value> values) {
    require(values.size() <= 0xffffffffu, "NumpyRandomState: more than 2^32 - 1 values");
    for (std::size_t i = values.size(); i-- > 1;) {
      const auto bound = static_cast<std::uint32_t>(i);
      const std::uint32_t mask = ~std::uint32_t{0} >> std::countl_zero(bound);
      std::uint32_t j = 0;
      while ((j = static_cast<std::uint32_t>(generator_()) & mask) > bound) {
      }
      std::swap(values[i], values[j]);
    }
  }

 private:
  std::mt19937 generator_;
};

}  // namespace megalith

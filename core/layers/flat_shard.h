// Which part of each unit's flat buffers a data-parallel rank holds of what the ranks share out (ZeRO,
// arXiv:1910.02054): the rank-th of `ranks` equal parts. Numbers alone; peers are known to parallel/. One of one is the
// whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor/tensor.h"

namespace megalith {

struct FlatShard {
  int rank = 0;
  int ranks = 1;

  // Elements [begin, end) of a unit's buffer.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t size() const { return end - begin; }
  };

  bool is_whole() const { return ranks == 1; }
  // Of a buffer of `numel` elements, a multiple of `ranks`.
  Range range(std::int64_t numel) const { return {numel / ranks * rank, numel / ranks * (rank + 1)}; }
  Tensor of(const Tensor& flat) const {
    const Range own = range(flat.numel());
    return flat.slice(0, own.begin, own.size());
  }
  // What is held of `wanted`, elements of a buffer of `numel`; empty, and somewhere in it, where nothing is.
  Range clip(const Range& wanted, std::int64_t numel) const {
    const Range own = range(numel);
    const std::int64_t begin = std::clamp(wanted.begin, own.begin, own.end);
    return {begin, std::clamp(wanted.end, begin, own.end)};
  }
};

}  // namespace megalith

// Rows of activations of experts in pieces, for the kernels of RoutedSwiglu and RoutedActivation.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ops/cuda_launch.cuh"
#include "moe/ops/cuda_experts.cuh"

namespace megalith::cuda {

// Arguments for the rows from `first` on.
struct RoutedArguments {
  RoutedExperts offsets;
  std::int64_t first;
  unsigned items;      // per piece
  int columns, parts;  // columns: F; parts: items per row, which are packs or blocks of columns
  FastDivide row_parts;
  const void *x, *dy;
  void *dx, *y;
  const float* row_weight;
  float* partial;

  __device__ bool is_live(unsigned row) const { return first + row < offsets.live(); }
  __device__ std::int64_t at(unsigned row) const { return (first + row) * columns; }
};

// Calls launch(arguments) for pieces of the rows. A row has `parts` items.
template <class Op, class Launch>
void for_routed_rows(const Op& op, std::int64_t parts, Launch&& launch) {
  const std::int64_t rows = op.y.size(0), columns = op.y.size(1), experts = op.offsets.size(0) - 1;
  require(columns < kMaxIndex / 2, "routed rows of experts: more than 2^30 columns");
  require(rows < kMaxIndex && experts < kMaxIndex, "routed rows of experts: more than 2^31 rows");
  for_pieces(rows, parts, [&](std::int64_t first, std::int64_t count) {
    launch(RoutedArguments{
        .offsets = {op.offsets.template as<const std::int32_t>(), static_cast<int>(experts), static_cast<int>(rows)},
        .first = first,
        .items = static_cast<unsigned>(count * parts),
        .columns = static_cast<int>(columns),
        .parts = static_cast<int>(parts),
        .row_parts = FastDivide(std::max<std::int64_t>(1, parts)),
        .x = op.x.data,
        .y = op.y.data,
        .row_weight = op.row_weight.template as<const float>()});
  });
}

}  // namespace megalith::cuda

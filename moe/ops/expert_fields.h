// Fields that several ops on rows sorted by expert declare.
#pragma once

#include "core/ops/fields.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith {

// Declares the experts' offsets and returns the number of experts.
inline std::int64_t experts(const Tensor& offsets, Fields& f) {
  f.in(offsets, "op.offsets").dtype(DType::kInt32).rank(1);
  f.expect(offsets.size(0) >= 2, "op.offsets", "experts + 1 numbers, at least 2", offsets.shape);
  return offsets.size(0) - 1;
}

inline Field& weights_in(const Tensor& row_weight, std::int64_t rows, const Tensor& offsets, Fields& f) {
  return f.in(row_weight, "op.row_weight").dtype(DType::kFp32).shape({rows}).bounded_by(offsets);
}

// Declares the partial sums of the row weights' gradients; `shape`: rows and columns.
inline void partial_out(const Tensor& partial, const Shape& shape, const Tensor& offsets, Fields& f) {
  const Shape parts = {shape[0], (shape[1] + kPartialColumns - 1) / kPartialColumns};
  f.out(partial, "op.d_row_weight_partial").dtype(DType::kFp32).shape(parts).bounded_by(offsets);
}

}  // namespace megalith

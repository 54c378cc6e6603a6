// Rows from one dtype to another, or added up. Memory-bound, one pass, elementwise, so deterministic.
#pragma once

#include "core/ops/op.h"

namespace megalith {

// y = x, or y += x, in fp32 and rounded once to y's dtype.
struct CastRows {
  static constexpr const char* kName = "cast_rows";
  Tensor x;                 // up to 4 dims, bf16 | fp32, the last dim with stride 1
  Tensor y;                 // out, with `accumulate` in and out: shape of x, bf16 | fp32, rows may be strided
  bool accumulate = false;  // x and y must not overlap
};
void fields(const CastRows& op, Fields& f);
void run(CpuStream& stream, const CastRows& op);
void run(CudaStream& stream, const CastRows& op);

}  // namespace megalith

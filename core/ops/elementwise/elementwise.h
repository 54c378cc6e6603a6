// Elementwise ops without parameters. Memory-bound; one pass; deterministic.
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

// y = a + b, rounded once.
struct Add {
  MEGALITH_OP(Add, "add");
  Tensor a;  // any shape, contiguous, bf16 | fp32
  Tensor b;  // shape and dtype of a
  Tensor y;  // out, shape and dtype of a; may be a or b
};

// y = parts[0] + parts[1] + ..., from left to right in fp32, rounded once: the order of a communicator's sums.
struct SumParts {
  MEGALITH_OP(SumParts, "sum_parts");
  Tensor parts;  // [P, ...], P >= 1, contiguous, bf16 | fp32
  Tensor y;      // out, shape of a part, dtype of parts; must not overlap them
};

// y = x, or y += x, in fp32, rounded once to nearest even to y's dtype.
struct CastRows {
  MEGALITH_OP(CastRows, "cast_rows");
  Tensor x;                 // up to 4 dims, bf16 | fp32; rows may be strided
  Tensor y;                 // out, with `accumulate` in and out: shape of x, bf16 | fp32, rows may be strided
  bool accumulate = false;  // x and y must not overlap
};

// dst = src, byte for byte. Fastest when the inner dims of both are contiguous.
struct Copy {
  MEGALITH_OP(Copy, "copy");
  Tensor src;  // any shape, strides and dtype
  Tensor dst;  // out, shape and dtype of src, any strides; must not overlap src
};

// x = value everywhere.
struct Fill {
  MEGALITH_OP(Fill, "fill");
  Tensor x;          // out, any shape, strides and dtype
  double value = 0;  // converted to x's dtype
};

}  // namespace megalith

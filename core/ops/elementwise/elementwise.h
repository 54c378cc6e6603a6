// Elementwise ops without parameters. Memory-bound; one pass; deterministic.
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

// y = a + b, rounded once.
struct Add {
  static constexpr const char* kName = "add";
  Tensor a;  // any shape, contiguous, bf16 | fp32
  Tensor b;  // shape and dtype of a
  Tensor y;  // out, shape and dtype of a; may be a or b
};

// y = parts[0] + parts[1] + ..., from left to right in fp32, rounded once: the order of a communicator's sums.
struct SumParts {
  static constexpr const char* kName = "sum_parts";
  Tensor parts;  // [P, ...], P >= 1, contiguous, bf16 | fp32
  Tensor y;      // out, the shape of one part, dtype of parts; must not overlap them
};

// y = x, or y += x, in fp32 and rounded once, to nearest even, to y's dtype.
struct CastRows {
  static constexpr const char* kName = "cast_rows";
  Tensor x;                 // up to 4 dims, bf16 | fp32; rows may be strided
  Tensor y;                 // out, with `accumulate` in and out: shape of x, bf16 | fp32, rows may be strided
  bool accumulate = false;  // x and y must not overlap
};

// dst = src, byte for byte. Fastest when the inner dims of both are contiguous.
struct Copy {
  static constexpr const char* kName = "copy";
  Tensor src;  // any shape, strides and dtype
  Tensor dst;  // out, shape and dtype of src, any strides; must not overlap src
};

// x = value everywhere.
struct Fill {
  static constexpr const char* kName = "fill";
  Tensor x;          // out, any shape, strides and dtype
  double value = 0;  // converted to x's dtype
};

void fields(const Add& op, Fields& f);
void compute(const Add& op);
void run(CudaStream& stream, const Add& op);

void fields(const SumParts& op, Fields& f);
void compute(const SumParts& op);
void run(CudaStream& stream, const SumParts& op);

void fields(const CastRows& op, Fields& f);
void compute(const CastRows& op);
void run(CudaStream& stream, const CastRows& op);

void fields(const Copy& op, Fields& f);
void compute(const Copy& op);
void run(CudaStream& stream, const Copy& op);

void fields(const Fill& op, Fields& f);
void compute(const Fill& op);
void run(CudaStream& stream, const Fill& op);

}  // namespace megalith

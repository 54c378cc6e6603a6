// Sums with a fixed order: the same bits on every run, whatever the alignment.
#pragma once

#include "core/ops/op.h"

namespace megalith {

// out[c] = sum over r of x[r, c] (+ out[c]): bias gradients, partial weight gradients of norms. Added in fp32, rounded
// once.
struct ReduceRows {
  static constexpr const char* kName = "reduce_rows";
  Tensor x;    // [R, C] bf16 | fp32; rows may be strided
  Tensor out;  // [C] out (in and out if accumulate), bf16 | fp32
  bool accumulate = false;
};
void fields(const ReduceRows& op, Fields& f);
void run(CpuStream& stream, const ReduceRows& op);
void run(CudaStream& stream, const ReduceRows& op);

// out[0] = sum of x (+ out[0]): the loss over tokens. Sums of blocks are added in fp64 and rounded once.
struct ReduceToScalar {
  static constexpr const char* kName = "reduce_to_scalar";
  Tensor x;    // [n] fp32
  Tensor out;  // [1] out (in and out if accumulate), fp32
  bool accumulate = false;
};
void fields(const ReduceToScalar& op, Fields& f);
void run(CpuStream& stream, const ReduceToScalar& op);
void run(CudaStream& stream, const ReduceToScalar& op);

}  // namespace megalith

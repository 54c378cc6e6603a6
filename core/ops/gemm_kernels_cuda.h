// What cuBLASLt leaves to do. Needs no CUDA header.
#pragma once

#include <cstdint>

#include "core/device/cuda_stream.h"
#include "core/tensor/tensor.h"

namespace megalith {

// c[i, j] = (c[i, j] if keep, else 0) + (bias[j] if there is one). c: [m, n] fp32 | bf16, rows may be strided; bias:
// [n] fp32 | bf16.
struct GemmRows {
  Tensor c, bias;
  bool keep = false;
};
void run(CudaStream& stream, const GemmRows& op);

// Nearly normal numbers of variance 1, for measurements: a GPU is faster on zeros, and on small numbers, than on what a
// model multiplies. x: contiguous fp32 | bf16.
void fill_normal(CudaStream& stream, const Tensor& x, std::uint32_t seed);

}  // namespace megalith

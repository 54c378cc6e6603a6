// Sums of the ranks' parts, as each rank makes them from copies of the others'.
#pragma once

#include <cstdint>

#include "core/device/cuda_stream.h"
#include "core/tensor/tensor.h"

namespace megalith {

struct PartSum {
  Tensor own;          // [n] fp32 | bf16
  Tensor others;       // those of the other ranks, ascending, each from a multiple of `pitch` elements on
  std::int64_t pitch;  // >= n, a multiple of 8
  int rank, ranks;     // own's place among them
  Tensor out;          // [n] as own, or fp32; may be own
  bool accumulate;     // adds to out
};

// out = part 0 + part 1 + ..., in fp32, rounded once; or out + that, rounded once more. Any alignment of own and out.
void sum_parts(CudaStream& stream, const PartSum& sum);

}  // namespace megalith

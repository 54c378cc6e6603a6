// Sums of the ranks' parts, which each rank computes from copies of the others' parts.
#pragma once

#include <cstdint>

#include "core/device/cuda_stream.h"
#include "core/tensor/tensor.h"

namespace megalith {

struct PartSum {
  Tensor own;          // [n] fp32 | bf16
  Tensor others;       // parts of other ranks, ascending, with a stride of `pitch`
  std::int64_t pitch;  // >= n, a multiple of 8
  int rank, ranks;     // position of own among the ranks
  Tensor out;          // [n] as own, or fp32; may be own
  bool accumulate;     // adds to out
};

// out = part 0 + part 1 + ..., in fp32, rounded once; or out plus that sum, rounded again. own, out: any alignment.
void sum_parts(CudaStream& stream, const PartSum& sum);

}  // namespace megalith

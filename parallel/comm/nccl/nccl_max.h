// NCCL's maximum drops NaN, so maxima of floats are taken over integers whose order is that of the floats, with NaN
// above all.
#pragma once

#include <cstdint>

#include "core/device/cuda_stream.h"
#include "core/tensor/tensor.h"

namespace megalith {

constexpr DType key_dtype(DType floats) { return floats == DType::kFp64 ? DType::kInt64 : DType::kInt32; }

// fp32 | bf16 -> int32, fp64 -> int64, and back; both contiguous, of the same numel. fp32 and fp64 may be converted in
// place. -0 is below +0; a NaN comes back as another NaN.
void keys_from_floats(CudaStream& stream, const Tensor& floats, const Tensor& keys);
void floats_from_keys(CudaStream& stream, const Tensor& keys, const Tensor& floats);

}  // namespace megalith

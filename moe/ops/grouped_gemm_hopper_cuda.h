// The grouped products on Hopper's own instructions, for bf16 and the shapes that models have.
#pragma once

#include "moe/ops/grouped_gemm.h"

namespace megalith::cuda {

// Enqueues the op and is true, or does nothing and is false: another device, dtype, alignment or an odd shape, or a
// build without this device's code. The answer is the same for a fused op and the product in it where all tensors begin
// at multiples of 16 bytes, as allocated ones do.
bool run_hopper(CudaStream& stream, const GroupedGemm& op);
bool run_hopper(CudaStream& stream, const GroupedGemmWgrad& op);
bool run_hopper(CudaStream& stream, const GroupedGemmSwiglu& op);
bool run_hopper(CudaStream& stream, const GroupedGemmSwigluBackward& op);

}  // namespace megalith::cuda

// Grouped GEMMs by Hopper's TMA and wgmma, for bf16 and the shapes that models have.
#pragma once

#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith::cuda {

// Enqueues the op and returns true; or does nothing and returns false for another device, another dtype or alignment,
// an odd shape, or a build without this device's code. A fused op and the product in it get the same answer where all
// tensors begin at multiples of 16 bytes, as allocated ones do.
bool run_hopper(CudaStream& stream, const GroupedGemm& op);
bool run_hopper(CudaStream& stream, const GroupedGemmWgrad& op);
bool run_hopper(CudaStream& stream, const GroupedGemmSwiglu& op);
bool run_hopper(CudaStream& stream, const GroupedGemmSwigluBackward& op);

}  // namespace megalith::cuda

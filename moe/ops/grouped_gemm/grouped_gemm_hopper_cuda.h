// Grouped GEMMs with Hopper's TMA and wgmma, for bf16 and common model shapes.
#pragma once

#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith::cuda {

// Enqueues the op and returns true. Returns false for an unsupported device, dtype, alignment or shape, or a build
// without this device's code. If all tensors are 16-byte aligned, as allocated tensors are, a fused op and its GEMM
// return equal values.
bool run_hopper(CudaStream& stream, const GroupedGemm& op);
bool run_hopper(CudaStream& stream, const GroupedGemmWgrad& op);
bool run_hopper(CudaStream& stream, const GroupedGemmSwiglu& op);
bool run_hopper(CudaStream& stream, const GroupedGemmSwigluBackward& op);

}  // namespace megalith::cuda

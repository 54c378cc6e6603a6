// Grouped GEMMs for any shape, alignment and dtype, on devices from compute_80 on. A fused op runs the GEMM and then
// the routed SwiGLU.
#pragma once

#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith::cuda {

void run_plain(CudaStream& stream, const GroupedGemm& op);
void run_plain(CudaStream& stream, const GroupedGemmWgrad& op);
void run_plain(CudaStream& stream, const GroupedGemmSwiglu& op);
void run_plain(CudaStream& stream, const GroupedGemmSwigluBackward& op);

}  // namespace megalith::cuda

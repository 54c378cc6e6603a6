// Attention's own kernels: fp32 forward and backward (tests only), and both dtypes of generation. Needs no CUDA header.
#pragma once

#include "core/device/cuda_stream.h"
#include "core/ops/attention/attention.h"

namespace megalith {

void run_fp32(CudaStream& stream, const AttentionForward& op);
void run_fp32(CudaStream& stream, const AttentionBackward& op);

}  // namespace megalith

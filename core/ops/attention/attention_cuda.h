// Attention's requirements on cuDNN, and its kernels. Needs no CUDA header; only CUDA sources call it.
#pragma once

#include <cstddef>

#include "core/device/cuda_stream.h"
#include "core/ops/attention/attention.h"

namespace megalith {

inline constexpr std::size_t kOldestCudnn = 91501;  // 9.15.1: older backward may read out of bounds under graph replay

// Fails with exit code 2 if this version of cuDNN (a value of cudnnGetVersion()) is too old, or its major version is
// not 9.
void check_attention_library(std::size_t version);
void check_attention_library();  // checks the linked cuDNN

// attention_rows*_cuda.cu: fp32 forward and backward (for tests), and generation in both dtypes.
void run_fp32(CudaStream& stream, const AttentionForward& op);
void run_fp32(CudaStream& stream, const AttentionBackward& op);

}  // namespace megalith

// What attention asks of cuDNN, and its own kernels. Needs no CUDA header; only CUDA's own sources call it.
#pragma once

#include <cstddef>

#include "core/device/cuda_stream.h"
#include "core/ops/attention/attention.h"

namespace megalith {

inline constexpr std::size_t kOldestCudnn = 91501;  // 9.15.1: older backward may read out of bounds under graph replay

// Exit code 2 and one line if cuDNN of this version (as cudnnGetVersion() says it) is too old, or of another major
// version than 9.
void check_attention_library(std::size_t version);
void check_attention_library();  // the one this program is linked to

// attention_rows*_cuda.cu: fp32 forward and backward (tests only), and both dtypes of generation.
void run_fp32(CudaStream& stream, const AttentionForward& op);
void run_fp32(CudaStream& stream, const AttentionBackward& op);

}  // namespace megalith

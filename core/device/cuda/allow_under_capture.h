// Allocation, during a capture, of state that streams and ops keep from call to call.
#pragma once

#include <cuda_runtime_api.h>

#include "core/device/cuda/check.h"

namespace megalith {

// Lets this thread allocate while one of its streams captures. The allocations are not part of the graph.
class AllowUnderCapture {
 public:
  AllowUnderCapture() { MEGALITH_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~AllowUnderCapture() { log_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  AllowUnderCapture(const AllowUnderCapture&) = delete;
  AllowUnderCapture& operator=(const AllowUnderCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace megalith

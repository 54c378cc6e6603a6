// Turns a status of the CUDA runtime into an Error with the driver's name and text. The exit code is 6 if device memory
// ran out, otherwise 9.
//   MEGALITH_CUDA_CHECK(cudaMemsetAsync(to, 0, bytes, stream.handle()));
//   kernel<<<blocks, threads, 0, stream.handle()>>>(...);
//   MEGALITH_CUDA_CHECK(cudaGetLastError());
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace megalith {

[[noreturn]] void fail_cuda(cudaError_t status, const char* call,
                            std::source_location place = std::source_location::current());

inline void check_cuda(cudaError_t status, const char* call,
                       std::source_location place = std::source_location::current()) {
  if (status != cudaSuccess) [[unlikely]]
    fail_cuda(status, call, place);
}

// Logs a failed status instead of throwing; for destructors.
void log_cuda(cudaError_t status, const char* call) noexcept;

}  // namespace megalith

#define MEGALITH_CUDA_CHECK(call) ::megalith::check_cuda((call), #call)

namespace megalith {

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  MEGALITH_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace megalith

#include "core/device/cuda/check.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/device/cuda/library_check.h"

namespace megalith {

void fail_cuda(cudaError_t status, const char* call, std::source_location place) {
  static_cast<void>(cudaGetLastError());  // clears the error, so that the next call does not report it again
  const bool memory = status == cudaErrorMemoryAllocation;
  fail({.code = memory ? ExitCode::kOutOfMemory : ExitCode::kInternal,
        .subject = call,
        .expected = "success",
        .got =
            fmt::format("{} ({}): {}", cudaGetErrorName(status), static_cast<int>(status), cudaGetErrorString(status)),
        .remedy = memory ? "lower --micro-batch-size, or stop other processes on this GPU" : ""},
       place);
}

void log_cuda(cudaError_t status, const char* call) noexcept {
  // At process exit, an unloading driver has already freed everything.
  if (status == cudaSuccess || status == cudaErrorCudartUnloading) return;
  static_cast<void>(cudaGetLastError());
  try {
    log_warning(fmt::format("{}: {}: {}", call, cudaGetErrorName(status), cudaGetErrorString(status)));
  } catch (...) {  // no memory for the message
  }
}

void fail_blas(cublasStatus_t status, const char* call, std::source_location place) {
  fail({.code = status == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::kOutOfMemory : ExitCode::kInternal,
        .subject = call,
        .expected = "success",
        .got = fmt::format("{} ({}): {}", cublasLtGetStatusName(status), static_cast<int>(status),
                           cublasLtGetStatusString(status))},
       place);
}

void fail_dnn(cudnnStatus_t status, const char* call, std::source_location place) {
  char detail[1024] = "";
  cudnnGetLastErrorString(detail, sizeof(detail));
  fail({.code = ExitCode::kInternal,
        .subject = call,
        .expected = "success",
        .got = fmt::format("{} ({}): {}", cudnnGetErrorString(status), static_cast<int>(status), detail)},
       place);
}

}  // namespace megalith

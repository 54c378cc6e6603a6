// Status checks as in check.h, for cuBLASLt and cuDNN. cuDNN's message ends with its last error string.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <source_location>

namespace megalith {

[[noreturn]] void fail_blas(cublasStatus_t status, const char* call,
                            std::source_location place = std::source_location::current());

inline void check_blas(cublasStatus_t status, const char* call,
                       std::source_location place = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    fail_blas(status, call, place);
}

[[noreturn]] void fail_dnn(cudnnStatus_t status, const char* call,
                           std::source_location place = std::source_location::current());

inline void check_dnn(cudnnStatus_t status, const char* call,
                      std::source_location place = std::source_location::current()) {
  if (status != CUDNN_STATUS_SUCCESS) [[unlikely]]
    fail_dnn(status, call, place);
}

}  // namespace megalith

#define MEGALITH_CUBLAS_CHECK(call) ::megalith::check_blas((call), #call)
#define MEGALITH_CUDNN_CHECK(call) ::megalith::check_dnn((call), #call)

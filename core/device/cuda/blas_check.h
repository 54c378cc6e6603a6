// The same as check.h for cuBLASLt.
#pragma once

#include <cublasLt.h>

#include <source_location>

namespace megalith {

[[noreturn]] void fail_blas(cublasStatus_t status, const char* call,
                            std::source_location place = std::source_location::current());

inline void check_blas(cublasStatus_t status, const char* call,
                       std::source_location place = std::source_location::current()) {
  if (status != CUBLAS_STATUS_SUCCESS) [[unlikely]]
    fail_blas(status, call, place);
}

}  // namespace megalith

#define MEGALITH_CUBLAS_CHECK(call) ::megalith::check_blas((call), #call)

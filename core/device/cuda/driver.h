// Functions of the driver, libcuda. Programs do not link to libcuda, so that they also start without a driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/device/cuda/check.h"

namespace megalith {

// Returns the driver's function `name` as of CUDA 12, e.g. cuStreamWriteValue64. Function is a pointer of its type.
template <class Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  MEGALITH_CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) fail({.subject = "the CUDA driver", .expected = name, .got = "none"});
  return reinterpret_cast<Function>(function);
}

inline void check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) [[likely]]
    return;
  fail({.subject = call, .expected = "success", .got = fmt::format("CUDA's error {}", static_cast<int>(result))});
}

}  // namespace megalith

// Reports of kernels about wrong data:
//   void raise_bad_label(const std::int64_t* v) { fail({.subject = ..., .got = fmt::format("{}", v[1])}); }
//   kernel<<<...>>>(..., stream.fault(), raise_bad_label);
//   device: if (label >= vocab) report_fault(fault, raise, row, label, vocab - 1);
// `raise` is a host function: the kernel only stores its address.
#pragma once

#include <cstdint>

#include "core/device/cuda_device.h"

namespace megalith {

__device__ inline void report_fault(CudaFault* fault, CudaFault::Raise raise, std::int64_t a = 0, std::int64_t b = 0,
                                    std::int64_t c = 0, std::int64_t d = 0) {
  // The plain read comes first: threads with bad values must not serialize on one atomic across the bus.
  volatile unsigned* claimed = &fault->claimed;
  if (*claimed != 0 || atomicCAS(&fault->claimed, 0u, 1u) != 0) return;
  volatile std::int64_t* values = fault->values;
  values[0] = a;
  values[1] = b;
  values[2] = c;
  values[3] = d;
  *const_cast<CudaFault::Raise volatile*>(&fault->raise) = raise;
  __threadfence_system();
  *const_cast<volatile unsigned*>(&fault->ready) = 1;
}

}  // namespace megalith

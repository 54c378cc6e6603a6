// What a device can compute at most: the denominator of the model FLOPs utilisation (MFU).
#pragma once

#include <string_view>

#include "apps/options.h"

namespace megalith {

// Of the tensor cores in bf16 without sparsity, as NVIDIA's data sheets have it, in TFLOP/s; 0: not known. `device` is
// the name that the driver reports.
double bf16_peak_tflops(std::string_view device);

// --peak-tflops; without it, and with --bf16, that of the device. 0: not known.
double peak_tflops_of(const Options& options, std::string_view device);

}  // namespace megalith

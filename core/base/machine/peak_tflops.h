#pragma once

#include <string_view>

namespace megalith {

// What a GPU can compute at most, in TFLOP/s; 0: not known. In bf16 on tensor cores without sparsity, as NVIDIA's data
// sheets have it, by the name that the driver reports.
double bf16_peak_tflops(std::string_view device);

}  // namespace megalith

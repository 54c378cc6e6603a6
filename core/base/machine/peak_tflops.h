#pragma once

#include <string_view>

namespace megalith {

// Returns the peak TFLOP/s of a GPU by the driver's device name; 0 if unknown. Values are from NVIDIA's data sheets:
// bf16 on tensor cores without sparsity.
double bf16_peak_tflops(std::string_view device);

}  // namespace megalith

#include "core/base/machine/peak_tflops.h"

namespace megalith {

namespace {

struct Peak {
  std::string_view name;  // substring of the device's name
  double tflops;
};

// The first match counts, so slower variants of a chip come first.
constexpr Peak kPeaks[] = {
    {"H200 NVL", 835}, {"H100 NVL", 835}, {"H100 PCIe", 756}, {"GH200", 989}, {"H200", 989},
    {"H100", 989},     {"B200", 2250},    {"A100", 312},      {"L40S", 362},  {"A40", 150},
};

}  // namespace

double bf16_peak_tflops(std::string_view device) {
  if (device.find(" MIG ") != std::string_view::npos) return 0;  // a partition of a GPU
  for (const auto& [name, tflops] : kPeaks) {
    if (device.find(name) != std::string_view::npos) return tflops;
  }
  return 0;
}

}  // namespace megalith

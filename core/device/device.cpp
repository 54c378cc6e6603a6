#include "core/device/device.h"

#include "core/base/error.h"
#include "core/device/cuda_device.h"

namespace megalith {

void require_built(DeviceType type) {
  if (type != DeviceType::kCuda || kCudaBuilt) return;
  refuse_usage("--device cuda", "cpu, in a build without the CUDA backend", "cuda",
               "configure with -DMEGALITH_CUDA=ON");
}

DeviceType default_device() {
  if constexpr (kCudaBuilt) {
    static const bool usable = cuda_unavailable().empty();
    if (usable) return DeviceType::kCuda;
  }
  return DeviceType::kCpu;
}

}  // namespace megalith

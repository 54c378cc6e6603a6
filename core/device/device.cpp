#include "core/device/device.h"

#include "core/base/error.h"
#include "core/device/cuda_device.h"

namespace megalith {

void require_built(DeviceType type) {
  if (type == DeviceType::kCuda && !cuda_built()) refuse_cuda();
}

void refuse_cuda() {
  refuse_usage("--device cuda", {.expected = "cpu, in a build without the CUDA backend",
                                 .got = "cuda",
                                 .remedy = "configure with -DMEGALITH_CUDA=ON"});
}

DeviceType default_device() {
  static const bool usable = cuda_unavailable().empty();
  return usable ? DeviceType::kCuda : DeviceType::kCpu;
}

}  // namespace megalith

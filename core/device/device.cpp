#include "core/device/device.h"

#include "core/base/error.h"

namespace megalith {

void require_built(DeviceType type) {
  if (type != DeviceType::kCuda || kCudaBuilt) return;
  fail({.code = ExitCode::kUsage,
        .subject = "--device cuda",
        .expected = "cpu, in a build without the CUDA backend",
        .got = "cuda",
        .remedy = "configure with -DMEGALITH_CUDA=ON",
        .show_place = false});
}

}  // namespace megalith

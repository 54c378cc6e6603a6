#include "core/device/cuda/near_gpu.h"

#include <cuda_runtime_api.h>

#include "core/device/near_cpus.h"

namespace megalith {

cpu_set_t cpus_of_gpu() {
  int device = 0;
  char bus[32] = {};
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof(bus), device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return cpus_near_pci(bus);
}

}  // namespace megalith

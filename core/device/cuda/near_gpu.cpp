#include "core/device/cuda/near_gpu.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/file.h"
#include "core/device/cpu_list.h"

namespace megalith {

namespace {

// CPUs of the GPU's node; none where that is not known.
cpu_set_t cpus_of_gpu() {
  cpu_set_t none{};
  int device = 0;
  char bus[32] = {};
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof(bus), device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return none;
  }
  std::string name(bus);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const FaultScope scope("host_memory");
  try {
    constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 12;
    return parse_cpu_list(read_whole_file("/sys/bus/pci/devices/" + name + "/local_cpulist", kMaxBytes));
  } catch (const Error&) {
    return none;
  }
}

}  // namespace

NearGpu::NearGpu() {
  if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  const cpu_set_t near = cpus_of_gpu();
  cpu_set_t both{};
  CPU_AND(&both, &near, &before_);  // what the process was bound to stays
  moved_ = CPU_COUNT(&both) > 0 && sched_setaffinity(0, sizeof(both), &both) == 0;
}

NearGpu::~NearGpu() {
  if (moved_) static_cast<void>(sched_setaffinity(0, sizeof(before_), &before_));
}

}  // namespace megalith

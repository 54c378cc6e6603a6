#include "core/device/cuda_device.h"

#include <cuda_profiler_api.h>
#include <fmt/format.h>

#include <atomic>
#include <new>

#include "core/base/error.h"
#include "core/device/cuda/check.h"
#include "core/device/device.h"

namespace megalith {

namespace {

constexpr int kOldestCapability = 80;

// Index of the process's GPU. CUDA's current device is thread-local, and many threads create streams.
constinit std::atomic<int> selected_device = -1;

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

bool cuda_built() { return true; }

CudaFacts cuda_facts(int index) {
  CudaFacts facts{.index = index};
  if (cudaDriverGetVersion(&facts.driver_version) != cudaSuccess) facts.driver_version = 0;
  MEGALITH_CUDA_CHECK(cudaRuntimeGetVersion(&facts.runtime_version));
  const cudaError_t counted = cudaGetDeviceCount(&facts.count);
  if (counted != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    facts.count = 0;
    facts.count_error = cudaGetErrorString(counted);
    return facts;
  }
  if (index < 0 || index >= facts.count) return facts;
  cudaDeviceProp properties;
  MEGALITH_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  facts.name = properties.name;
  facts.compute_capability = 10 * properties.major + properties.minor;
  return facts;
}

void check(const CudaFacts& facts) {
  // Within one major version a newer runtime works with an older driver.
  if (facts.driver_version != 0 && facts.driver_version / 1000 < facts.runtime_version / 1000) {
    refuse_usage("--device cuda: the NVIDIA driver is too old",
                 {.expected = fmt::format("one that serves CUDA {}", version_text(facts.runtime_version)),
                  .got = fmt::format("one for CUDA {}", version_text(facts.driver_version)),
                  .remedy = "update the driver"});
  }
  if (facts.count == 0) {
    refuse_usage("--device cuda: no GPU",
                 {.expected = "a visible NVIDIA GPU",
                  .got = facts.count_error.empty() ? "none" : "none (" + facts.count_error + ")",
                  .remedy = "check nvidia-smi and CUDA_VISIBLE_DEVICES, or train with --device cpu"});
  }
  if (facts.index < 0 || facts.index >= facts.count) {
    refuse_usage("--device cuda: too few GPUs", {.expected = fmt::format("GPU {}", facts.index),
                                                 .got = fmt::format("{} visible", facts.count),
                                                 .remedy = "start at most one process a GPU on each node"});
  }
  if (facts.compute_capability < kOldestCapability) {
    refuse_usage("--device cuda: the GPU is too old", {.expected = "compute capability 8.0 or newer",
                                                       .got = fmt::format("{}.{} ({})", facts.compute_capability / 10,
                                                                          facts.compute_capability % 10, facts.name)});
  }
}

std::string cuda_unavailable() {
  try {
    check(cuda_facts(0));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

void select_cuda_device(int index) {
  check(cuda_facts(index));
  int before = -1;
  if (!selected_device.compare_exchange_strong(before, index) && before != index) {
    fail({.subject = "selecting a GPU",
          .expected = fmt::format("GPU {}, which this process uses", before),
          .got = fmt::format("{}", index)});
  }
  use_cuda_device();
}

int use_cuda_device() {
  int index = selected_device.load();
  if (index < 0) {
    check(cuda_facts(0));
    if (selected_device.compare_exchange_strong(index, 0)) index = 0;
  }
  MEGALITH_CUDA_CHECK(cudaSetDevice(index));
  return index;
}

std::string cuda_bus_id() {
  char bus[32] = {};
  MEGALITH_CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof(bus), use_cuda_device()));
  return bus;
}

CudaFault* cuda_fault() {
  // Mapped pinned memory has one address on host and device. The allocation lives as long as the process.
  static CudaFault* const fault = [] {
    use_cuda_device();
    void* address = nullptr;
    MEGALITH_CUDA_CHECK(cudaHostAlloc(&address, sizeof(CudaFault), cudaHostAllocPortable | cudaHostAllocMapped));
    return new (address) CudaFault;
  }();
  return fault;
}

void raise_cuda_fault() {
  CudaFault* const fault = cuda_fault();
  if (std::atomic_ref(fault->ready).load(std::memory_order_acquire) == 0) [[likely]]
    return;
  const CudaFault found = *fault;
  *fault = CudaFault{};
  found.raise(found.values);
  fail({.subject = "a kernel reported a fault", .got = "a report function that throws nothing"});
}

void record_cuda_profile(bool on) {
  MEGALITH_CUDA_CHECK(cudaDeviceSynchronize());
  MEGALITH_CUDA_CHECK(on ? cudaProfilerStart() : cudaProfilerStop());
}

}  // namespace megalith

#include "core/device/cuda_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "core/base/side_by_side.h"
#include "core/device/cuda/check.h"
#include "core/device/cuda_device.h"
#include "core/device/near_cpus.h"

namespace megalith {

namespace {

void* null_if_refused(cudaError_t status, void* address, const char* call) {
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  check_cuda(status, call);
  return address;
}

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPinnedByParts = std::size_t{64} << 20;  // larger blocks: cudaHostAlloc clears pages one by one
constexpr int kMostThreads = 8;

struct PinnedByParts {
  std::mutex mutex;
  std::map<void*, std::size_t> blocks;
};
PinnedByParts& pinned_by_parts() {
  static PinnedByParts pinned;
  return pinned;
}

// Allocates pages near this thread's CPUs, huge pages where the system has them, touched by several threads. Returns
// null if memory is short.
void* take_pages(std::size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  for (const int advice : {MADV_HUGEPAGE, MADV_DONTFORK, MADV_DONTDUMP}) madvise(address, bytes, advice);
  cpu_set_t cpus{};
  const bool is_known = sched_getaffinity(0, sizeof(cpus), &cpus) == 0;
  const auto many = static_cast<std::size_t>(std::clamp(is_known ? CPU_COUNT(&cpus) : 1, 1, kMostThreads));
  const std::size_t part = (bytes / many + kHugePage - 1) / kHugePage * kHugePage;
  side_by_side((bytes + part - 1) / part, many, [&](std::size_t i) {
    constexpr std::size_t kPage = 4096;
    const std::size_t end = std::min((i + 1) * part, bytes);
    for (std::size_t at = i * part; at < end; at += kPage) static_cast<volatile char*>(address)[at] = 0;
  });
  return address;
}

// Returns null if pinning fails.
void* pin_by_parts(std::size_t bytes) {
  void* const address = take_pages(bytes);
  if (address == nullptr) return nullptr;
  if (cudaHostRegister(address, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    munmap(address, bytes);
    return nullptr;
  }
  PinnedByParts& pinned = pinned_by_parts();
  const std::lock_guard lock(pinned.mutex);
  pinned.blocks[address] = bytes;
  return address;
}

// Frees a block of pin_by_parts. Returns false for any other address.
bool free_by_parts(void* address) {
  PinnedByParts& pinned = pinned_by_parts();
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(pinned.mutex);
    const auto found = pinned.blocks.find(address);
    if (found == pinned.blocks.end()) return false;
    bytes = found->second;
    pinned.blocks.erase(found);
  }
  log_cuda(cudaHostUnregister(address), "cudaHostUnregister");
  munmap(address, bytes);
  return true;
}

// Returns the CPUs of the GPU's NUMA node; empty if the node is unknown.
cpu_set_t cpus_of_gpu() {
  int device = 0;
  char bus[32] = {};
  if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof(bus), device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  return cpus_near_pci(bus);
}

// Returns whether the GPU addresses registered memory by the host's address.
bool shares_addresses() {
  int shares = 0;
  MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&shares, cudaDevAttrCanUseHostPointerForRegisteredMem, use_cuda_device()));
  return shares != 0;
}

}  // namespace

void* cuda_allocate(std::size_t bytes) {
  use_cuda_device();
  void* address = nullptr;
  const cudaError_t status = cudaMalloc(&address, bytes);
  return null_if_refused(status, address, "cudaMalloc");
}

void cuda_free(void* address) noexcept { log_cuda(cudaFree(address), "cudaFree"); }

void* cuda_allocate_host(std::size_t bytes) {
  use_cuda_device();
  const RunNear near(cpus_of_gpu());  // this thread touches the pages below
  void* address = bytes >= kPinnedByParts && shares_addresses() ? pin_by_parts(bytes) : nullptr;
  if (address != nullptr) return address;
  const cudaError_t status = cudaHostAlloc(&address, bytes, cudaHostAllocPortable);
  return null_if_refused(status, address, "cudaHostAlloc");
}

void cuda_free_host(void* address) noexcept {
  if (address != nullptr && !free_by_parts(address)) log_cuda(cudaFreeHost(address), "cudaFreeHost");
}

CudaMemory cuda_memory() {
  use_cuda_device();
  CudaMemory memory;
  MEGALITH_CUDA_CHECK(cudaMemGetInfo(&memory.free, &memory.total));
  return memory;
}

}  // namespace megalith

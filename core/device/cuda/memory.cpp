#include "core/device/cuda_memory.h"

#include "core/device/cuda/check.h"
#include "core/device/cuda/near_gpu.h"
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
  const RunNear near(cpus_of_gpu());  // pages are taken here
  void* address = nullptr;
  const cudaError_t status = cudaHostAlloc(&address, bytes, cudaHostAllocPortable);
  return null_if_refused(status, address, "cudaHostAlloc");
}

void cuda_free_host(void* address) noexcept { log_cuda(cudaFreeHost(address), "cudaFreeHost"); }

CudaMemory cuda_memory() {
  use_cuda_device();
  CudaMemory memory;
  MEGALITH_CUDA_CHECK(cudaMemGetInfo(&memory.free, &memory.total));
  return memory;
}

}  // namespace megalith

// Memory of the process's GPU, and host memory that the GPU accesses directly. Needs no CUDA header.
#pragma once

#include <cstddef>

namespace megalith {

// Allocates `bytes`, 256-byte aligned. Returns null if the GPU has less memory left; any other failure is an error.
void* cuda_allocate(std::size_t bytes);
void cuda_free(void* address) noexcept;
// Allocates pinned memory with the same address on host and device. Returns null if the host lacks memory.
void* cuda_allocate_host(std::size_t bytes);
void cuda_free_host(void* address) noexcept;
// Free and total bytes of the GPU now, to report what libraries and contexts hold in addition to the pools.
struct CudaMemory {
  std::size_t free = 0;
  std::size_t total = 0;
};
CudaMemory cuda_memory();

}  // namespace megalith

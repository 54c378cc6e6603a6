// Memory of the process's GPU, and host memory it can copy from and to by itself. Needs no CUDA header.
#pragma once

#include <cstddef>

namespace megalith {

// Null when the GPU has not that much left; every other failure is an error. 256-byte aligned.
void* cuda_allocate(std::size_t bytes);
void cuda_free(void* address) noexcept;
// Pinned, the same address on host and device; null when the host refuses.
void* cuda_allocate_host(std::size_t bytes);
void cuda_free_host(void* address) noexcept;
// What is free and in all on the GPU now, for the report of what libraries and contexts hold beside the pools.
struct CudaMemory {
  std::size_t free = 0;
  std::size_t total = 0;
};
CudaMemory cuda_memory();

}  // namespace megalith

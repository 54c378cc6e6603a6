// Thread block clusters: blocks that run at the same time and reach each other's shared memory. Code for devices before
// compute capability 9.0 has none, also where a newer device runs its PTX: launch with clusters of one block then, and
// call none of the device functions.
#pragma once

#include <cuda_runtime_api.h>

namespace megalith::cuda {

inline constexpr int kMaxCluster = 8;  // blocks that every device with clusters can run as one

// Host: of a kernel's code as it was loaded for the device.
inline bool has_clusters(const cudaFuncAttributes& code) { return code.ptxVersion >= 90; }

__device__ inline unsigned cluster_rank() {
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// Ends when all threads of the cluster have arrived; what they wrote before, also to other blocks, is seen then.
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// *shared = x in the memory of block `rank` of the cluster. That block must have started: see a barrier first.
__device__ inline void store_to_peer(float* shared, unsigned rank, float x) {
#if __CUDA_ARCH__ >= 900
  unsigned there;
  const auto here = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(x) : "memory");
#endif
}

}  // namespace megalith::cuda

// Named barriers: synchronization of some of a block's warps.
#pragma once

namespace megalith::cuda {

// Synchronizes `threads` threads, a multiple of 32, at one of the block's 16 hardware barriers. __syncthreads uses
// number 0.
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace megalith::cuda

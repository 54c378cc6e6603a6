// Barriers of some of a block's warps.
#pragma once

namespace megalith::cuda {

// `threads` threads, a multiple of 32, wait for each other at one of the block's 16 hardware barriers. Number 0 is that
// of __syncthreads.
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace megalith::cuda

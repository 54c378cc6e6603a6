// How the blocks of a pull wait for the other GPUs: see PullMeeting.
#pragma once

#include <cstdint>

#include "parallel/comm/nccl_pull.h"

namespace megalith {

// Whoever reads the value may read what came before it.
__device__ inline void tell_all(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ inline void tell_gpu(std::uint64_t* word, std::uint64_t value) {
  asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ inline void wait_for_all(const std::uint64_t* word, std::uint64_t least) {
  std::uint64_t value = 0;
  do {
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  } while (value < least);
}
__device__ inline void wait_for_gpu(const std::uint64_t* word, std::uint64_t least) {
  std::uint64_t value = 0;
  do {
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  } while (value < least);
}

// Both by all threads of all blocks, which have as many as there are ranks at least. Behind the first, rows of the
// others may be read. Only one block asks across the bus.
__device__ inline void offer_rows(const PullMeeting& meeting, int rank, int ranks) {
  PullMeeting::State* const state = meeting.state;
  if (state == nullptr) return;
  const std::uint64_t round = state->ended + 1;
  const int peer = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0) {
    if (peer < ranks && peer != rank) {
      tell_all(&meeting.there[peer]->offered, round);
      wait_for_all(&meeting.here[peer]->offered, round);
    }
    __syncthreads();
    if (threadIdx.x == 0) tell_gpu(&state->begun, round);
  } else if (threadIdx.x == 0) {
    wait_for_gpu(&state->begun, round);
  }
  __syncthreads();
}

// Behind the block's last access to rows. The last block of all ends once every rank has its rows.
__device__ inline void take_rows(const PullMeeting& meeting, int rank, int ranks) {
  PullMeeting::State* const state = meeting.state;
  if (state == nullptr) return;
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    is_last = atomicAdd(&state->blocks_ended, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  const std::uint64_t round = state->ended + 1;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < ranks && peer != rank) {
    tell_all(&meeting.there[peer]->taken, round);
    wait_for_all(&meeting.here[peer]->taken, round);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    state->blocks_ended = 0;
    state->ended = round;
  }
}

}  // namespace megalith

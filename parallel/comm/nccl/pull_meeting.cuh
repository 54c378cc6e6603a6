// How the kernels of a pull meet those of the other GPUs: see PullMeeting.
#pragma once

#include <cstdint>

#include "parallel/comm/nccl/nccl_pull.h"

namespace megalith {

// Tells each other rank that `word` of its round has come, and waits for theirs; by kMostPullRanks threads at least of
// one block. Once a failed run has released this rank it tells none any more, so that those that wait for it go no
// round further than it did.
__device__ inline void meet(const PullMeeting& meeting, std::uint64_t PullMeeting::Words::*word, std::uint64_t round,
                            int rank, int ranks) {
  const int peer = static_cast<int>(threadIdx.x);
  if (peer >= ranks || peer == rank || meeting.state->released != 0) return;
  // What this GPU did before is seen by whoever acquires the value.
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(&(meeting.there[peer]->*word)), "l"(round) : "memory");
  std::uint64_t told = 0;
  while (true) {
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(told) : "l"(&(meeting.here[peer]->*word)) : "memory");
    if (told >= round) break;
    __nanosleep(100);
  }
  if (told == PullMeeting::kReleased) meeting.state->released = 1;
}

// Of one block, ahead of the pull: none of the multiprocessors that this takes waits for other ranks.
__global__ void __launch_bounds__(kMostPullRanks)
    offer_rows_kernel(const __grid_constant__ PullMeeting meeting, int rank, int ranks) {
  meet(meeting, &PullMeeting::Words::offered, meeting.state->ended + 1, rank, ranks);
}

// By all threads of the pull, behind their last access to rows. The last block of all ends once every rank has its
// rows.
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
  meet(meeting, &PullMeeting::Words::taken, round, rank, ranks);
  __syncthreads();
  if (threadIdx.x == 0) {
    state->blocks_ended = 0;
    state->ended = round;
  }
}

}  // namespace megalith

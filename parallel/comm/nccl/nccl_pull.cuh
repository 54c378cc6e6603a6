// Synchronization of a pull's kernels with those of the other GPUs (PullMeeting), and distribution of exchanged rows
// over warps, with source and destination of each row.
#pragma once

#include <cstdint>

#include "parallel/comm/communicator.h"
#include "parallel/comm/exchanged_rows.h"
#include "parallel/comm/nccl/nccl_pull.h"

namespace megalith {

// Writes `word` for this round to each other rank, and waits for theirs. Called by at least kMaxPullRanks threads of
// one block. After a failed run has released this rank, it writes no more, so waiting ranks go no further.
__device__ inline void meet(const PullMeeting& meeting, std::uint64_t PullMeeting::Words::*word, std::uint64_t round,
                            int rank, int ranks) {
  const int peer = static_cast<int>(threadIdx.x);
  if (peer >= ranks || peer == rank || meeting.state->released != 0) return;
  // The release store makes this GPU's earlier work visible to the acquiring rank.
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(&(meeting.there[peer]->*word)), "l"(round) : "memory");
  std::uint64_t value = 0;
  while (true) {
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(&(meeting.here[peer]->*word)) : "memory");
    if (value >= round) break;
    __nanosleep(100);
  }
  if (value == PullMeeting::kReleased) meeting.state->released = 1;
}

// One block, ahead of the pull. So only one multiprocessor waits for other ranks.
__global__ void __launch_bounds__(kMaxPullRanks)
    offer_rows_kernel(const __grid_constant__ PullMeeting meeting, int rank, int ranks) {
  meet(meeting, &PullMeeting::Words::offered, meeting.state->ended + 1, rank, ranks);
}

// Called by all threads of the pull after their last access to rows. The last block ends when every rank has its rows.
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

inline constexpr int kMostTensors = static_cast<int>(ExchangeRows::kMostTensors);

enum class Way { kPull, kPack, kUnpack };

struct RowTensor {
  const std::byte* in;
  std::byte* out;
  std::byte* parts;  // packed parts in `room`
  std::int64_t row_bytes;
  int unit;     // bytes that a thread moves at a time: 16, 4, 2 or 1
  int units;    // per row
  bool narrow;  // a half-warp moves a row at once; unused for the first tensor
};

struct RowMoves {
  RowCounts counts;
  const std::int32_t* index;  // null: none
  std::int64_t in_rows;       // limit of index values
  int rank;
  int tensors;
  RowTensor of[kMostTensors];  // sorted by row bytes, descending
  std::int64_t part_bytes;
  std::int64_t shift[kMaxPullRanks];  // kPull: offset from this rank's memory to each rank's
  PullMeeting meeting;                // kPull
};

// Bypasses L1, since data are read once.
template <class ByteUnit>
__device__ ByteUnit load(const std::byte* from, int at) {
  return __ldcg(reinterpret_cast<const ByteUnit*>(from) + at);
}

// Starts of the rows of one pair of ranks, as offsets to the addresses of RowTensor.
struct Ends {
  std::int64_t from;  // added to in, or to parts
  std::int64_t to;    // added to parts
  bool to_parts;
};

template <Way kWay>
__device__ Ends ends_of(const RowMoves& moves, int peer) {
  const std::int64_t part = (peer < moves.rank ? peer : peer - 1) * moves.part_bytes;
  if constexpr (kWay == Way::kPull) return {moves.shift[peer], 0, false};
  if constexpr (kWay == Way::kPack) return {0, part, peer != moves.rank};
  return {part, 0, false};
}

// Finds the pieces of all peers, with all threads of the block.
template <Way kWay>
__device__ void find_pieces(const RowMoves& moves, RowPiece* pieces) {
  const int ranks = moves.counts.ranks, me = moves.rank;
  for (int peer = static_cast<int>(threadIdx.x); peer < ranks; peer += static_cast<int>(blockDim.x)) {
    pieces[peer] = kWay == Way::kPack ? moves.counts.piece(me, peer) : moves.counts.piece(peer, me);
    if (kWay == Way::kUnpack && peer == me) pieces[peer].rows = 0;  // kPack has moved them
  }
  __syncthreads();
}

// One of the warps that process rows.
struct Worker {
  int lane, warp, warps;
};
__device__ inline Worker worker_of(int warp, int warps_of_block) {
  return {.lane = static_cast<int>(threadIdx.x) % 32,
          .warp = static_cast<int>(blockIdx.x) * warps_of_block + warp,
          .warps = static_cast<int>(gridDim.x) * warps_of_block};
}

// Calls batch(ends, from, to) for up to 32 rows of the worker at a time, one per lane; `from` is -1 for no row. Rows of
// each pair of ranks are distributed over all workers. Blocks start at different ranks, so all ranks are read at any
// time.
template <Way kWay, class Batch>
__device__ void for_batches(const RowMoves& moves, const RowPiece* pieces, const Worker& worker, Batch batch) {
  const int ranks = moves.counts.ranks, warps = worker.warps;
  for (int step = 0; step < ranks; ++step) {
    const int peer = (moves.rank + 1 + static_cast<int>(blockIdx.x) + step) % ranks;
    const RowPiece piece = pieces[peer];
    const Ends ends = ends_of<kWay>(moves, peer);
    const auto* const index = reinterpret_cast<const std::int32_t*>(reinterpret_cast<const std::byte*>(moves.index) +
                                                                    (kWay == Way::kPull ? ends.from : 0));
    const bool indexed = kWay != Way::kUnpack && moves.index != nullptr;
    // The first warp differs by rank, which balances the remainders.
    const int turn = (worker.warp + peer * (warps / ranks + 1)) % warps;
    for (std::int64_t first = turn; first < piece.rows; first += std::int64_t{32} * warps) {
      const std::int64_t row = first + std::int64_t{worker.lane} * warps;
      std::int64_t from = row >= piece.rows ? -1 : kWay == Way::kUnpack ? row : piece.from + row;
      if (indexed && from >= 0) {
        from = __ldcg(index + from);
        if (from >= moves.in_rows) from = -1;
      }
      batch(ends, from, ends.to_parts ? row : piece.to + row);
    }
  }
}

// Calls move(ends, from, to) for each row of the worker, with all lanes. 32 indices are read ahead of their rows.
template <Way kWay, class Move>
__device__ void for_rows(const RowMoves& moves, const RowPiece* pieces, const Worker& worker, Move move) {
  for_batches<kWay>(moves, pieces, worker, [&](const Ends& ends, std::int64_t from, std::int64_t to) {
    for (unsigned left = __ballot_sync(~0u, from >= 0); left != 0; left &= left - 1) {
      const int lane = __ffs(static_cast<int>(left)) - 1;
      move(ends, __shfl_sync(~0u, from, lane), __shfl_sync(~0u, to, lane));
    }
  });
}

}  // namespace megalith

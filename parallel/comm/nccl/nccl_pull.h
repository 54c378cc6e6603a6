// Kernels that move the rows of an ExchangeRows. Each kernel reads its work from `sends`; the host does not know it.
// Copies produce equal bits in any order. Invalid counts or indices move fewer rows and never write elsewhere. Rows
// have any size; if all rows and addresses are multiples of 16 bytes, Hopper's bulk copies pull them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/cuda_stream.h"
#include "parallel/comm/collective.h"

namespace megalith {

inline constexpr int kMaxPullRanks = 64;
inline constexpr unsigned kPullBlocks = 16;  // maximum; each occupies a multiprocessor

// Synchronization of a group's GPUs before and after a pull. The pull's kernels write and read the words, which is 2 to
// 7 us faster than the streams' front ends. Rounds count a group's pulls, from 1.
struct PullMeeting {
  static constexpr std::uint64_t kReleased = ~std::uint64_t{0};  // written to words after a failure of the run
  // Words from one rank to another, in host memory that both GPUs access: the last round whose rows are ready, and the
  // last round whose rows were received.
  struct Words {
    std::uint64_t offered;
    std::uint64_t taken;
  };
  struct State {            // in this GPU's memory, initially 0
    std::uint64_t ended;    // completed rounds
    unsigned blocks_ended;  // in this round
    unsigned released;      // not 0 after kReleased was read
  };
  State* state = nullptr;         // null: no synchronization
  Words* here[kMaxPullRanks]{};   // words from each rank
  Words* there[kMaxPullRanks]{};  // words of this rank for each rank
};

// Loads the kernels in advance, and returns whether this GPU has bulk copies. CUDA loads a kernel at its first launch.
// This may wait for all running work, which may itself wait for a peer that waits for this rank.
bool load_pull_kernels();

// Pulls this rank's rows from the memory of their holders. `bases`: start of each rank's memory as mapped on this GPU,
// by rank, including this one. `in` and `index` belong to this rank; they have equal offsets in each memory. `in_bulk`:
// by bulk copies if the rows are suitable; see load_pull_kernels().
void pull_rows(CudaStream& stream, const ExchangeRows& op, std::span<const std::byte* const> bases,
               const PullMeeting& meeting, bool in_bulk);

// Exchange through the room. pack_rows fills the parts for other ranks and moves rows that stay. unpack_rows moves
// received rows to out.
void pack_rows(CudaStream& stream, const PaddedExchangeRows& op);
void unpack_rows(CudaStream& stream, const PaddedExchangeRows& op);

}  // namespace megalith

// The rows of an ExchangeRows as kernels move them. Each kernel finds in `sends` what it has to move: nothing is known
// to the host. Copies, so the same bits in any order; wrong counts or indices move fewer rows and write nothing else.
// Tensors of any row size; where all rows and addresses are multiples of 16 bytes, Hopper's bulk copies pull them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/device/cuda_stream.h"
#include "parallel/comm/collective.h"

namespace megalith {

inline constexpr int kMostPullRanks = 64;
inline constexpr unsigned kPullBlocks = 16;  // at most, of a multiprocessor each

// Where the GPUs of a group meet before and behind a pull: its kernels write and read the words themselves, which takes
// 2 to 7 us less than the streams' front ends do. Rounds count a group's pulls, from 1.
struct PullMeeting {
  static constexpr std::uint64_t kReleased = ~std::uint64_t{0};  // set in words here once the run failed
  // What one rank has told another, in memory of the host that both GPUs reach: the last round whose rows it has ready,
  // and the last one of which it has its own.
  struct Words {
    std::uint64_t offered;
    std::uint64_t taken;
  };
  struct State {            // in this GPU's memory, 0 at first
    std::uint64_t ended;    // rounds
    unsigned blocks_ended;  // of this round
    unsigned released;      // not 0 once kReleased was read
  };
  State* state = nullptr;          // null: none meet
  Words* here[kMostPullRanks]{};   // by the rank that writes them
  Words* there[kMostPullRanks]{};  // this rank's, by the rank that reads them
};

// CUDA loads a kernel at its first launch, which may wait for all that runs: one that waits for a rank that waits for
// this one. So they are loaded before.
void load_pull_kernels();

// This rank's rows, out of the memory of those who hold them: where each rank's memory begins as this GPU sees it, by
// rank, this one too. `in` and `index` are this rank's; they lie equally far behind each base.
void pull_rows(CudaStream& stream, const ExchangeRows& op, std::span<const std::byte* const> bases,
               const PullMeeting& meeting);

// The same through op.room: fills the parts for the other ranks and moves the rows that stay; once the others' parts
// are there, moves their rows to out.
void pack_rows(CudaStream& stream, const ExchangeRows& op);
void unpack_rows(CudaStream& stream, const ExchangeRows& op);

}  // namespace megalith

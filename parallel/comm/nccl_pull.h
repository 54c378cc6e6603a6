// The rows of an ExchangeRows as kernels move them. Each kernel finds in `sends` what it has to move: nothing is known
// to the host. Copies, so the same bits in any order; wrong counts or indices move fewer rows and write nothing else.
// Tensors of any row size; where all rows and addresses are multiples of 16 bytes, Hopper's bulk copies pull them.
#pragma once

#include <cstddef>
#include <span>

#include "core/device/cuda_stream.h"
#include "parallel/comm/collective.h"

namespace megalith {

inline constexpr int kMostPullRanks = 64;
inline constexpr unsigned kPullBlocks = 16;  // at most, of a multiprocessor each

// This rank's rows, out of the memory of those who hold them: where each rank's memory begins as this GPU sees it, by
// rank, this one too. `in` and `index` are this rank's; they lie equally far behind each base.
void pull_rows(CudaStream& stream, const ExchangeRows& op, std::span<const std::byte* const> bases);

// The same through op.room: fills the parts for the other ranks and moves the rows that stay; once the others' parts
// are there, moves their rows to out.
void pack_rows(CudaStream& stream, const ExchangeRows& op);
void unpack_rows(CudaStream& stream, const ExchangeRows& op);

}  // namespace megalith

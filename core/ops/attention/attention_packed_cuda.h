// Kernels of bf16 attention of packed documents. Needs no CUDA header; only CUDA sources call it.
#pragma once

#include <array>
#include <cstddef>

#include "core/device/cuda_stream.h"
#include "core/ops/attention/packed_workspace.h"

namespace megalith {

using TokenStrides = std::array<std::int64_t, PackedTables::kTensors>;  // elements from row to row of each tensor

// Writes the tables of an op's documents to the workspace's start. If a document does not fit, all are empty, and the
// next synchronization fails.
void write_tables(CudaStream& stream, const AttentionForward& op, const TokenStrides& strides);
void write_tables(CudaStream& stream, const AttentionBackward& op, const TokenStrides& strides);

// Writes the results of queries without keys, and of keys without queries, which cuDNN skips.
void write_rows_without_partner(CudaStream& stream, const AttentionForward& op);
void write_rows_without_partner(CudaStream& stream, const AttentionBackward& op);

// Computes dq without atomics; the workspace holds the tables.
void run_repeatable_dq(CudaStream& stream, const AttentionBackward& op);

}  // namespace megalith

// Token embedding with optional learned positions (Radford et al. 2019):
//   y[r] = table[tokens[r]] + positions[position of row r % rows_per_sample + start]
// T: tokens (row r = sample * rows_per_sample + row in sample), V: vocabulary, H: hidden size, M: maximum positions.
// Memory-bound; one pass; deterministic: the backward adds rows in ascending order, without atomics. If a token is
// outside of the vocabulary or a position outside [0, M), the kernel throws Error (kFormat) with token and row. On CUDA
// the error surfaces at the stream's next synchronize().
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/ops/op_declaration.h"
#include "core/ops/sequence_part.h"

namespace megalith {

struct EmbeddingForward {
  MEGALITH_OP_WITH_WORKSPACE(EmbeddingForward, "embedding_forward");
  Tensor tokens;     // [T] int32
  Tensor table;      // [V, H] bf16 | fp32, contiguous
  Tensor positions;  // [M, H] dtype of table, contiguous; optional
  // First token of the table, which holds [first_token, first_token + V) of `vocabulary` tokens; 0: V. Other tokens
  // give 0 in y and add nothing to d_table.
  std::int64_t first_token = 0;
  std::int64_t vocabulary = 0;
  std::int64_t rows_per_sample = 1;
  SequencePart part;                    // positions of a sample's rows
  const std::int32_t* start = nullptr;  // device: added to the positions; null: 0
  Tensor y;                             // [T, H] out, dtype of table, contiguous
  Tensor workspace;                     // [workspace_bytes(op, device)] uint8
};

struct EmbeddingBackward {
  MEGALITH_OP_WITH_WORKSPACE(EmbeddingBackward, "embedding_backward");
  Tensor tokens;       // [T] int32
  Tensor dy;           // [T, H] bf16 | fp32, contiguous
  Tensor d_table;      // [V, H] fp32 or dtype of dy, contiguous, added to; in bf16 a token's sum is rounded once
  Tensor d_positions;  // [M, H] like d_table, added to; optional; a row counts for its position
  std::int64_t first_token = 0;  // this and the next as in EmbeddingForward
  std::int64_t vocabulary = 0;
  std::int64_t rows_per_sample = 1;
  SequencePart part;  // as in EmbeddingForward
  Tensor workspace;   // [workspace_bytes(op, device)] uint8
};

// CUDA backward, which sorts the tokens and sums chunks of them: bound of the workspace, which sets the shortest
// chunks.
inline constexpr std::size_t kEmbeddingWorkspaceBytes = std::size_t{32} << 20;
inline constexpr std::int64_t kMaxSortedChunk = 512;  // rows
// Returns the minimum chunk. A chunk's rows of d_table are read and written in sequence: few tokens get short chunks.
inline std::int64_t min_sorted_chunk(std::int64_t tokens) {
  return static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::clamp<std::int64_t>(tokens / 512, 4, 64))));
}

}  // namespace megalith

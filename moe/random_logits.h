// Logits that are drawn in place of a router's own, for benchmarks. A token's logits are a function of its sequence in
// the microbatch and of its position there, so that they have the same bits however ranks share the rows.
#pragma once

#include "core/base/rng.h"
#include "core/device/stream.h"
#include "core/ops/sequence_part.h"
#include "core/tensor/tensor.h"

namespace megalith {

// Which rows of a microbatch of sequences.
struct RowsOfSequences {
  std::int64_t first = 0;       // of the rows that ranks of one tensor-parallel group share
  std::int64_t seq_length = 0;  // rows of a sequence among them
  SequencePart part = {};       // their positions
};

// `logits`: [rows, E] fp32. The offset of `numbers` is not read.
void draw_logits(Stream& stream, const Tensor& logits, const NormalNumbers& numbers, const RowsOfSequences& rows);

}  // namespace megalith

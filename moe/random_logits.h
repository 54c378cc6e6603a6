// Random logits that replace a router's own, for benchmarks. They depend only on a token's sequence and position in the
// microbatch. Therefore bits are equal for any split of the rows over ranks.
#pragma once

#include "core/base/rng.h"
#include "core/device/stream.h"
#include "core/ops/sequence_part.h"
#include "core/tensor/tensor.h"

namespace megalith {

// Position of a rank's rows in the sequences of a microbatch.
struct RowsOfSequences {
  std::int64_t first = 0;       // index among the rows of the tensor-parallel group
  std::int64_t seq_length = 0;  // rows of each sequence in the group
  SequencePart part = {};       // part of the sequence, which defines positions
};

// Fills `logits`, [rows, E] fp32. `numbers.offset` is ignored.
void draw_logits(Stream& stream, const Tensor& logits, const NormalNumbers& numbers, const RowsOfSequences& rows);

}  // namespace megalith

// y = x / (1 - p) if kept, 0 if dropped; Srivastava et al. 2014, JMLR 15(56). An element is dropped if its random word
// is below p * 2^32. The word depends on the element's identity, not on its location: Philox 4x32-10 (core/base/rng.h)
// keyed by
//   key     = derive_key(seed, {iteration low, high, layer, kRngDropout | site})
//   counter = {32-column group and lane: column / 32 * 8 + column % 8, position, global sample low, high}
//   word    = column / 8 % 4
// Recompute, replay, any microbatch size and any layout of rows and columns therefore repeat it. Backward is the same
// op on the gradient. Compute-bound in bf16, otherwise memory-bound; one pass; deterministic. T: tokens (row = sample *
// rows_per_sample + row in sample), H: hidden size.
#pragma once

#include <cstdint>

#include "core/ops/device_parameters.h"
#include "core/ops/op_declaration.h"
#include "core/ops/sequence_part.h"

namespace megalith {

struct Dropout {
  MEGALITH_OP(Dropout, "dropout");
  Tensor x;                          // [T, H] bf16 | fp32, rows may be strided
  Tensor y;                          // [T, H] out, dtype of x, rows may be strided; may be x
  float p = 0;                       // probability of dropping an element, 0 <= p < 1
  std::uint64_t seed = 0;            // the run's seed
  std::int32_t layer = 0;            // global number of the layer
  std::int32_t site = 0;             // index of the dropout in the layer, 0 to 2^24 - 1
  std::int64_t rows_per_sample = 1;  // rows of one sample; sample s of the tensor is rows [s, s + 1) * rows_per_sample
  const MicrobatchParameters* parameters = nullptr;  // device: iteration and first_sample
  std::int64_t first_row = 0;     // number of x's first row among the samples' rows, if rows are split
  SequencePart part;              // positions of a sample's rows
  std::int64_t first_column = 0;  // first column of x in the unsharded row, a multiple of 32, if columns are split
};

}  // namespace megalith

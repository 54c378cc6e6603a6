// Count of NaN elements, for hooks and tests that locate the first NaN. Memory-bound; one pass; exact.
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

// count[0] += number of NaN in x. Infinities do not count.
struct CountNan {
  MEGALITH_OP(CountNan, "count_nan");
  Tensor x;      // any shape, bf16 | fp32; rows past its bound are ignored
  Tensor count;  // [1] in and out, int64
};

}  // namespace megalith

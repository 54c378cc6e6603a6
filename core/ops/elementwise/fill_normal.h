// Initial weights: normal or uniform numbers that depend on the parameter's name and the element's index
// (core/base/rng.h), not on the layout of ranks or the device.
#pragma once

#include "core/base/rng.h"
#include "core/ops/op_declaration.h"

namespace megalith {

// x[r][c] = number offset + r pitch + c of `numbers`, rounded to fp32, then to x's dtype.
struct FillNormal {
  MEGALITH_OP(FillNormal, "fill_normal");
  Tensor x;  // out, [rows, columns], contiguous, fp32 or bf16
  NormalNumbers numbers;
  bool uniform = false;    // uniform numbers of the same mean and standard deviation
  std::int64_t pitch = 0;  // elements of a row of the unsharded parameter, of which x has some columns
};

}  // namespace megalith

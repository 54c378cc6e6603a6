// Initial weights: normal numbers that are a function of the parameter's name and the element's place in it
// (core/base/rng.h), so they depend neither on the layout of ranks nor on the device.
#pragma once

#include "core/base/rng.h"
#include "core/ops/op_declaration.h"

namespace megalith {

// x[r][c] = number offset + r pitch + c of `numbers`, rounded to fp32, then to x's dtype.
struct FillNormal {
  MEGALITH_OP(FillNormal, "fill_normal");
  Tensor x;  // out, [rows, columns], contiguous, fp32 or bf16
  NormalNumbers numbers;
  std::int64_t pitch = 0;  // elements of a row of the whole parameter, of which x's columns are a part
};

}  // namespace megalith

// Arithmetic of reductions, shared by all communicators for bitwise equal results.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor/dtype.h"
#include "parallel/comm/communicator.h"

namespace megalith {

// out[i] = parts[0][i] + parts[1][i] + ..., from left to right; n elements of `dtype` (fp32 | bf16 | fp64 | int32 |
// int64). bf16 is accumulated in fp32 and rounded once; integers wrap around. kMax propagates NaN. `out` may be one of
// the parts.
void reduce_parts(ReduceOp op, DType dtype, std::span<const void* const> parts, void* out, std::int64_t n);

}  // namespace megalith

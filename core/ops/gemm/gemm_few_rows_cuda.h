// c = a b^T (+ bias) for the few rows of a that generation has, where cuBLASLt leaves half of the memory's speed
// unused.
#pragma once

#include "core/ops/gemm/gemm.h"

namespace megalith {

inline constexpr std::int64_t kFewRows = 4;

// bf16 operands, b transposed, whole packs of 16 bytes, nothing added but a bias. A row's bits do not depend on the
// number of rows.
bool suits_few_rows(const Gemm& op);
void run_few_rows(CudaStream& stream, const Gemm& op);

}  // namespace megalith

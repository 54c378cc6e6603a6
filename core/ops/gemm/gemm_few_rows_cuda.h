// c = a b^T (+ bias) for the few rows of a in generation, where cuBLASLt reaches half of the memory bandwidth.
#pragma once

#include "core/ops/gemm/gemm.h"

namespace megalith {

inline constexpr std::int64_t kFewRows = 4;

// Returns whether operands are bf16, b transposed, in full packs of 16 bytes, with no epilogue but a bias. A row's bits
// do not depend on the number of rows.
bool suits_few_rows(const Gemm& op);
void run_few_rows(CudaStream& stream, const Gemm& op);

}  // namespace megalith

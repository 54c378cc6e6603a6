// Matrix product with the epilogues of a linear layer: c = op(a) op(b) (+ bias) (+ c). Optional GELU on output or input
// (Hendrycks & Gimpel 2016, arXiv:1606.08415, the tanh form of core/ops/elementwise/activation.h). The CPU kernel
// follows Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication" (doi:10.1145/1356052.1356053).
// Every element of c depends only on its row of op(a), its column of op(b) and k. Another cut of m or n (microbatch
// size) or another alignment gives equal bits. On CUDA, cuBLASLt multiplies: the same call on the same sizes repeats
// its bits (core/ops/gemm/gemm_algorithms_cuda.h), other sizes may not. The product is rounded before its addition to a
// bf16 c. A dedicated kernel serves the few bf16 rows of generation (core/ops/gemm/gemm_few_rows_cuda.h).
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

// CUDA backend: a smaller workspace would exclude algorithms of cuBLASLt and change bits.
inline constexpr std::size_t kGemmWorkspaceBytes = std::size_t{32} << 20;

// m, n: rows and columns of c; k: the summed dim; 2 m n k FLOPs.
//   y = x W^T of a linear layer:  {.a = x, .b = w, .c = y, .transpose_b = true}
//   dx = dy W:                    {.a = dy, .b = w, .c = dx}
//   dW += dy^T x:                 {.a = dy, .b = x, .c = main_grad, .transpose_a = true, .accumulate = true}
//   y = gelu(h), h = x W^T + bias: {.a = x, .b = w, .c = y, .transpose_b = true, .bias = bias, .pre_activation = h}
//   dh = (dy W) gelu'(h):         {.a = dy, .b = w, .c = dh, .gelu_input = h}
// db += sum of dy's rows is ReduceRows: an epilogue of dW is slower (tests/bench/RESULTS.md).
struct Gemm {
  MEGALITH_OP_WITH_WORKSPACE(Gemm, "gemm");
  Tensor a;  // [m, k], or [k, m] if transpose_a; bf16 | fp32; rows may be strided
  Tensor b;  // [k, n], or [n, k] if transpose_b; dtype of a; rows may be strided
  Tensor c;  // [m, n] out (in and out if accumulate); dtype of a, or fp32; must not overlap a or b
  bool transpose_a = false;
  bool transpose_b = false;
  Tensor bias;              // optional [n], dtype of a: added to every row
  bool accumulate = false;  // adds to c instead of overwriting it
  // At most one of these, [m, n], dtype of c, contiguous like c, disjoint, without accumulate. On the CPU c has the
  // bits of Gemm followed by Gelu*. On CUDA a bf16 c is rounded once, after the GELU, whose tanh has bf16 accuracy.
  Tensor pre_activation;       // optional, out: c = gelu(pre_activation), pre_activation = op(a) op(b) + bias
  Tensor gelu_input;           // optional: c = op(a) op(b) * gelu'(gelu_input); without a bias
  bool b_is_constant = false;  // no earlier op that may still run writes b, which is prefetched
  Tensor workspace;            // [workspace_bytes(op, device)] uint8
};

}  // namespace megalith

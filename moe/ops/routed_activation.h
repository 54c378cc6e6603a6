// Activation functions without a gate on rows sorted by expert, times the rows' weights: the counterpart of the routed
// SwiGLU (grouped_gemm.h). Memory-bound, one pass, deterministic. Only the device reads offsets. Rows from offsets[E]
// on are neither read nor written. The bound of a tensor, if present, is the address of offsets[E].
//   R: capacity of routed rows, E: experts, F: FFN size of an expert
#pragma once

#include "core/ops/elementwise/activation.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith {

// y = round(w_r round(f(x))) for the first offsets[E] rows.
struct RoutedActivationForward {
  MEGALITH_OP(RoutedActivationForward, "routed_activation_forward");
  Tensor x;           // [R, F] bf16 | fp32; contiguous
  Tensor row_weight;  // [R] fp32
  Tensor offsets;     // [E + 1] int32
  Tensor y;           // [R, F] out, dtype of x; contiguous
  Pointwise function = Pointwise::kGeluTanh;
};

// s = round(f(x)); dy: the gradient of y. dx = f'(x) w_r dy, whose product w_r dy is fp32. y is recomputed. The partial
// sums d_row_weight_partial of dy s have the order of RoutedSwigluBackward.
struct RoutedActivationBackward {
  MEGALITH_OP(RoutedActivationBackward, "routed_activation_backward");
  Tensor x;                     // [R, F] from forward; contiguous
  Tensor dy;                    // [R, F] dtype of x; contiguous
  Tensor row_weight;            // [R] fp32
  Tensor offsets;               // [E + 1] int32
  Tensor dx;                    // [R, F] out, dtype of x; contiguous; may be x
  Tensor y;                     // [R, F] out, dtype of x; contiguous; may be dy
  Tensor d_row_weight_partial;  // [R, ceil(F / 64)] fp32 out; contiguous
  Pointwise function = Pointwise::kGeluTanh;
};

}  // namespace megalith

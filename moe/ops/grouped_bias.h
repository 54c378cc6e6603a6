// Linear layers' biases of experts, on rows sorted by expert: expert e adds row e of `bias` to its rows. Memory-bound,
// one pass, deterministic. Only the device reads offsets. Rows from offsets[E] on are neither read nor written. The
// bound of a tensor, if present, is the address of offsets[E]. An operand with `index` is read at row index[r]; an
// out-of-range entry is an Error at the next synchronization of the stream.
//   R: capacity of routed rows, T: tokens, E: experts, n: outputs of the linear layer
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

// x_r = round(x_r + w_r bias_e), in place. The product w_r bias_e is rounded to fp32; without weights it is bias_e.
struct GroupedBias {
  MEGALITH_OP(GroupedBias, "grouped_bias");
  Tensor x;           // [R, n] in and out, bf16 | fp32; rows may be strided
  Tensor bias;        // [E n] dtype of x
  Tensor row_weight;  // optional, [R] fp32
  Tensor offsets;     // [E + 1] int32
};

// Adds dy_r bias_e, a dot product in fp32, to the first partial sum of the gradient of w_r.
struct GroupedBiasDot {
  MEGALITH_OP(GroupedBiasDot, "grouped_bias_dot");
  Tensor dy;                    // [R, n], with index [T, n]; bf16 | fp32; rows may be strided
  Tensor index;                 // optional, [R] int32
  Tensor bias;                  // [E n] dtype of dy
  Tensor offsets;               // [E + 1] int32
  Tensor d_row_weight_partial;  // [R, P] in and out, fp32, P at least 1; contiguous
};

// d_bias_e += sum over the expert's rows of w_r dy_r, in fp32, in an order that only the number of rows sets. The sum
// is added or stored at the end. For an expert without rows, d_bias_e keeps its values, or becomes zero without
// `accumulate`.
struct GroupedBiasGradient {
  MEGALITH_OP(GroupedBiasGradient, "grouped_bias_gradient");
  Tensor dy;          // [R, n], with index [T, n]; bf16 | fp32; rows may be strided
  Tensor index;       // optional, [R] int32
  Tensor row_weight;  // optional, [R] fp32
  Tensor offsets;     // [E + 1] int32
  Tensor d_bias;      // [E n] in and out (out if not accumulate), fp32 or dtype of dy
  bool accumulate = true;
};

}  // namespace megalith

// Grouped GEMMs of a mixture of experts: each expert's rows are multiplied by its matrix. Rows are sorted by expert:
// rows offsets[e] <= r < offsets[e + 1] belong to expert e. Only the device reads offsets. Rows from offsets[E] on are
// neither read nor written. An operand with `index` is read at row index[r] instead of r, so no permuted copy is made.
// The bound of a tensor, if present, is the address of offsets[E]. On Hopper, blocks take tiles from one counter in the
// op's workspace. Deterministic: each result sums its terms in ascending order in fp32, for any tiling, and is rounded
// once.
//   R: capacity of routed rows, T: tokens, E: experts, F: FFN size of an expert
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

inline constexpr int kPartialColumns = 64;  // columns per partial sum of a row weight's gradient: eight packs of 8

// c_r = a_r B_e: forward and data gradient. 2 R k n FLOPs (4 with a pair), planned for the capacity.
struct GroupedGemm {
  MEGALITH_OP_WITH_WORKSPACE(GroupedGemm, "grouped_gemm");
  Tensor a;        // [R, k], with index [T, k]; bf16 | fp32; rows may be strided
  Tensor index;    // optional, [R] int32, values below T
  Tensor offsets;  // [E + 1] int32, from 0, ascending, the last one at most R
  Tensor b;        // B: [E n, k] if transpose_b, else [E k, n]; dtype of a; contiguous
  Tensor b2;       // optional, as b: a second matrix. transpose_b: c = [a b | a b2], else c = a[:, :k] b + a[:, k:] b2
  Tensor c;        // [R, n], [R, 2n] for a transposed pair; out, dtype of a; rows may be strided
  bool transpose_b = true;
  Tensor workspace;  // [workspace_bytes(op, device)] uint8: tile counter
};

// C_e += sum over the expert's rows of a_r^T b_r: weight gradient. For an expert without rows, C_e keeps its values, or
// becomes zero without `accumulate`.
struct GroupedGemmWgrad {
  MEGALITH_OP_WITH_WORKSPACE(GroupedGemmWgrad, "grouped_gemm_wgrad");
  Tensor a;                // [R, m], [R, 2m] with c2; with a_index [T, ...]; bf16 | fp32; rows may be strided
  Tensor a_index;          // optional, [R] int32
  Tensor b;                // [R, n], with b_index [T, n]; dtype of a; rows may be strided
  Tensor b_index;          // optional, [R] int32; excludes a_index
  Tensor offsets;          // [E + 1] int32
  Tensor c;                // [E m, n] in and out (out if not accumulate), fp32 or dtype of a; contiguous
  Tensor c2;               // optional, as c; receives the second half of a's columns
  bool accumulate = true;  // otherwise c is overwritten
  Tensor workspace;        // [workspace_bytes(op, device)] uint8: tile counter
};

// h = [a gate_e^T | a up_e^T], rounded;  y = w_r round(silu(h_gate) h_up), rounded. Fuses the experts' fc1, SwiGLU and
// the router's weight, with the bits of GroupedGemm and RoutedSwigluForward.
struct GroupedGemmSwiglu {
  MEGALITH_OP_WITH_WORKSPACE(GroupedGemmSwiglu, "grouped_gemm_swiglu");
  Tensor a;           // [R, k], with index [T, k]; bf16 | fp32; rows may be strided
  Tensor index;       // optional, [R] int32
  Tensor offsets;     // [E + 1] int32
  Tensor gate, up;    // [E F, k] dtype of a; contiguous
  Tensor row_weight;  // [R] fp32
  Tensor h;           // [R, 2F] out, dtype of a; contiguous
  Tensor y;           // [R, F] out, dtype of a; contiguous
  Tensor workspace;   // [workspace_bytes(op, device)] uint8: tile counter
};

// dy' = round(dy_r B_e), fc2's data gradient, fused with its RoutedSwigluBackward; equal bits to the unfused ops.
struct GroupedGemmSwigluBackward {
  MEGALITH_OP_WITH_WORKSPACE(GroupedGemmSwigluBackward, "grouped_gemm_swiglu_backward");
  Tensor dy;                    // [R, k], with index [T, k]; bf16 | fp32; rows may be strided
  Tensor index;                 // optional, [R] int32
  Tensor offsets;               // [E + 1] int32
  Tensor b;                     // [E k, F]: fc2's weight; dtype of dy; contiguous
  Tensor h;                     // [R, 2F] from forward; dtype of dy; contiguous
  Tensor row_weight;            // [R] fp32
  Tensor dh;                    // [R, 2F] out, dtype of dy; contiguous; may be h
  Tensor y;                     // [R, F] out: forward's y recomputed, bitwise equal; contiguous
  Tensor d_row_weight_partial;  // [R, ceil(F / 64)] fp32 out; contiguous
  Tensor workspace;             // [workspace_bytes(op, device)] uint8: tile counter
};

// y = round(w_r round(silu(x_gate) x_up)) for the first offsets[E] rows.
struct RoutedSwigluForward {
  MEGALITH_OP(RoutedSwigluForward, "routed_swiglu_forward");
  Tensor x;           // [R, 2F] bf16 | fp32, each row [gate | up]; contiguous
  Tensor row_weight;  // [R] fp32
  Tensor offsets;     // [E + 1] int32
  Tensor y;           // [R, F] out, dtype of x; contiguous
};

// s = round(silu(x_gate) x_up); dy: the gradient of y. dx = SwiGLU's gradient of w_r dy, an fp32 product without
// rounding. y is recomputed. For each block of 64 columns, d_row_weight_partial = sum of dy s in fp32. Each 8 columns
// are summed ascending, then their sums p0 to p7 as ((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7)).
struct RoutedSwigluBackward {
  MEGALITH_OP(RoutedSwigluBackward, "routed_swiglu_backward");
  Tensor x;                     // [R, 2F] from forward; contiguous
  Tensor dy;                    // [R, F] dtype of x; contiguous
  Tensor row_weight;            // [R] fp32
  Tensor offsets;               // [E + 1] int32
  Tensor dx;                    // [R, 2F] out, dtype of x; contiguous; may be x
  Tensor y;                     // [R, F] out, dtype of x; contiguous; may be dy
  Tensor d_row_weight_partial;  // [R, ceil(F / 64)] fp32 out; contiguous
};

// Unfused ops of a fused op, in order; the gradient's product is stored in y.
inline GroupedGemm product_of(const GroupedGemmSwiglu& op) {
  return {.a = op.a, .index = op.index, .offsets = op.offsets, .b = op.gate, .b2 = op.up, .c = op.h};
}
inline RoutedSwigluForward swiglu_of(const GroupedGemmSwiglu& op) {
  return {.x = op.h, .row_weight = op.row_weight, .offsets = op.offsets, .y = op.y};
}
inline GroupedGemm product_of(const GroupedGemmSwigluBackward& op) {
  return {.a = op.dy, .index = op.index, .offsets = op.offsets, .b = op.b, .c = op.y, .transpose_b = false};
}
inline RoutedSwigluBackward swiglu_of(const GroupedGemmSwigluBackward& op) {
  return {.x = op.h,
          .dy = op.y,
          .row_weight = op.row_weight,
          .offsets = op.offsets,
          .dx = op.dh,
          .y = op.y,
          .d_row_weight_partial = op.d_row_weight_partial};
}

}  // namespace megalith

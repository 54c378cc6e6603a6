// RMSNorm and LayerNorm over the last dim, fused with the residual add of a pre-norm block. Zhang & Sennrich 2019,
// arXiv:1910.07467, eq. 4 (RMSNorm); Ba et al. 2016, arXiv:1607.06450, eq. 4 (LayerNorm).
// With zero_centered the factor is 1 + weight, added in fp32, instead of weight.
// T tokens, H: the normalized dim. Tensors marked [rows, H] have rank 2 to 4, e.g. [T, H], or [T, N, D] to normalize
// each head (H = D, rows = T N). Their leading dims may be strided, the last has stride 1. Statistics are contiguous,
// one per row in row-major order of the leading dims.
#pragma once

#include <cstdint>

#include "core/ops/op_declaration.h"

namespace megalith {

// Returns the recommended rows P of a partial weight gradient: each is the sum over a fixed P-th of the rows, and
// ReduceRows adds them. On CUDA a block makes each: two for each multiprocessor of an H100.
constexpr std::int64_t norm_partials(DeviceType backend) { return backend == DeviceType::kCuda ? 264 : 8; }

// x' = x (+ residual);  y = weight * x' * rstd,  rstd = 1 / sqrt(mean(x'^2) + eps)
// With a residual, x' is first rounded to the dtype of `sum`, so that y is exactly the norm of the stored sum.
struct RmsNormForward {
  MEGALITH_OP(RmsNormForward, "rms_norm_forward");
  Tensor x;           // [rows, H] bf16 | fp32
  Tensor residual;    // optional [rows, H], shape and dtype of x
  Tensor sum;         // [rows, H] out: x + residual, dtype of x; present only with residual; may be x or residual
  Tensor weight;      // [H] dtype of x
  Tensor y;           // [rows, H] out, dtype of x; must not overlap an input
  Tensor rstd;        // [rows] out, fp32, kept for backward
  float eps = 1e-5f;  // added to the mean square, not to the root
  bool zero_centered = false;
};

// With h = x * rstd and g = weight * dy:  dx = rstd (g - h mean(g h)) (+ d_residual);  d_weight = sum over rows of dy h
struct RmsNormBackward {
  MEGALITH_OP(RmsNormBackward, "rms_norm_backward");
  Tensor dy;                // [rows, H] dtype of x
  Tensor x;                 // [rows, H] bf16 | fp32: the normalized tensor (forward's sum if it had a residual)
  Tensor weight;            // [H] dtype of x
  Tensor rstd;              // [rows] fp32
  Tensor d_residual;        // optional [rows, H], dtype of x: gradient of the residual path
  Tensor dx;                // [rows, H] out, dtype of x; may be dy or d_residual
  Tensor d_weight_partial;  // [P, H] out, fp32, contiguous; every element is written
  Tensor y;                 // optional, [rows, H] out: forward's y again, bit for bit; dtype of x
  bool zero_centered = false;
};

// x' = x (+ residual);  y = weight * (x' - mean) * rstd + bias,  rstd = 1 / sqrt(variance + eps), biased variance
struct LayerNormForward {
  MEGALITH_OP(LayerNormForward, "layer_norm_forward");
  Tensor x, residual, sum, weight;  // as in RmsNormForward
  Tensor bias;                      // [H] dtype of x
  Tensor y;                         // as in RmsNormForward
  Tensor mean, rstd;                // [rows] out, fp32, kept for backward
  float eps = 1e-5f;                // added to the variance
  bool zero_centered = false;
};

// With h = (x - mean) rstd and g = weight * dy:  dx = rstd (g - mean(g) - h mean(g h)) (+ d_residual)
// d_weight = sum over rows of dy h;  d_bias = sum over rows of dy
struct LayerNormBackward {
  MEGALITH_OP(LayerNormBackward, "layer_norm_backward");
  Tensor dy, x, weight;     // as in RmsNormBackward
  Tensor mean, rstd;        // [rows] fp32
  Tensor d_residual, dx;    // as in RmsNormBackward
  Tensor d_weight_partial;  // [P, H] out, fp32, contiguous; every element is written
  Tensor d_bias_partial;    // like d_weight_partial
  bool zero_centered = false;
};

}  // namespace megalith

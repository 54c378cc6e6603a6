// Activation functions of the MLP, elementwise, fp32 arithmetic. Memory-bound; one pass; deterministic.
//   GELU, Hendrycks & Gimpel 2016, arXiv:1606.08415: exact  x Phi(x)
//                                                    tanh   0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//   squared ReLU, So et al. 2021, arXiv:2109.08668:  max(x, 0)^2
//   SwiGLU, Shazeer 2020, arXiv:2002.05202:          silu(gate) * up,  silu(z) = z / (1 + exp(-z))
// T: tokens, F: FFN size.
#pragma once

#include <cstdint>

#include "core/ops/op_declaration.h"

namespace megalith {

// Activation functions without a gate.
enum class Pointwise : std::uint8_t { kGeluTanh, kGeluExact, kSquaredRelu };

struct GeluForward {
  MEGALITH_OP(GeluForward, "gelu_forward");
  Tensor x;            // any shape, contiguous, bf16 | fp32
  Tensor y;            // out, shape and dtype of x; may be x
  bool exact = false;  // false: the tanh form
};

struct GeluBackward {
  MEGALITH_OP(GeluBackward, "gelu_backward");
  Tensor x;   // forward's input
  Tensor dy;  // shape and dtype of x
  Tensor dx;  // out, shape and dtype of x; may be dy
  bool exact = false;
};

struct SquaredReluForward {
  MEGALITH_OP(SquaredReluForward, "squared_relu_forward");
  Tensor x;  // any shape, contiguous, bf16 | fp32
  Tensor y;  // out, shape and dtype of x; may be x
};

struct SquaredReluBackward {
  MEGALITH_OP(SquaredReluBackward, "squared_relu_backward");
  Tensor x;   // forward's input
  Tensor dy;  // shape and dtype of x
  Tensor dx;  // out, shape and dtype of x; may be dy
};

struct SwigluForward {
  MEGALITH_OP(SwigluForward, "swiglu_forward");
  Tensor x;  // [T, 2F] bf16 | fp32, each row [gate | up]; rows may be strided
  Tensor y;  // [T, F] out, dtype of x; rows may be strided; must not overlap x
};

struct SwigluBackward {
  MEGALITH_OP(SwigluBackward, "swiglu_backward");
  Tensor x;   // [T, 2F] forward's input; rows may be strided
  Tensor dy;  // [T, F] dtype of x; rows may be strided
  Tensor dx;  // [T, 2F] out, dtype of x; rows may be strided; may be x, must not overlap dy
  Tensor y;   // optional, [T, F] out: forward's y again, bit for bit; layout of dy, may be dy
};

}  // namespace megalith

// Activation functions of the MLP, elementwise, fp32 arithmetic inside. Memory-bound; one pass; deterministic.
//   GELU, Hendrycks & Gimpel 2016, arXiv:1606.08415: exact  x Phi(x)
//                                                   tanh   0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//   SwiGLU, Shazeer 2020, arXiv:2002.05202:         silu(gate) * up,  silu(z) = z / (1 + exp(-z))
// T: tokens, F: FFN size.
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

struct GeluForward {
  static constexpr const char* kName = "gelu_forward";
  Tensor x;            // any shape, contiguous, bf16 | fp32
  Tensor y;            // out, shape and dtype of x; may be x
  bool exact = false;  // false: the tanh form
};

struct GeluBackward {
  static constexpr const char* kName = "gelu_backward";
  Tensor x;   // the input of the forward
  Tensor dy;  // shape and dtype of x
  Tensor dx;  // out, shape and dtype of x; may be dy
  bool exact = false;
};

struct SwigluForward {
  static constexpr const char* kName = "swiglu_forward";
  Tensor x;  // [T, 2F] bf16 | fp32, each row [gate | up]; rows may be strided
  Tensor y;  // [T, F] out, dtype of x; rows may be strided; must not overlap x
};

struct SwigluBackward {
  static constexpr const char* kName = "swiglu_backward";
  Tensor x;   // [T, 2F] the input of the forward; rows may be strided
  Tensor dy;  // [T, F] dtype of x; rows may be strided
  Tensor dx;  // [T, 2F] out, dtype of x; rows may be strided; may be x, must not overlap dy
  Tensor y;   // optional, [T, F] out: the forward's y again, bit for bit; layout of dy, may be dy
};

void fields(const GeluForward& op, Fields& f);
void compute(const GeluForward& op);
void run(CudaStream& stream, const GeluForward& op);

void fields(const GeluBackward& op, Fields& f);
void compute(const GeluBackward& op);
void run(CudaStream& stream, const GeluBackward& op);

void fields(const SwigluForward& op, Fields& f);
void compute(const SwigluForward& op);
void run(CudaStream& stream, const SwigluForward& op);

void fields(const SwigluBackward& op, Fields& f);
void compute(const SwigluBackward& op);
void run(CudaStream& stream, const SwigluBackward& op);

}  // namespace megalith

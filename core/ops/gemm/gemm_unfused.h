// An unfused Gemm with GELU in two steps, for backends without the fusion. Internal to the op.
#pragma once

#include "core/ops/elementwise/activation.h"
#include "core/ops/gemm/gemm.h"

namespace megalith {

inline bool has_gelu(const Gemm& op) { return op.pre_activation.present() || op.gelu_input.present(); }

inline Gemm product_of(const Gemm& op) {
  Gemm product = op;
  product.pre_activation = product.gelu_input = {};
  if (op.pre_activation) product.c = op.pre_activation;
  return product;
}
inline GeluForward gelu_after(const Gemm& op) { return {.x = op.pre_activation, .y = op.c}; }
inline GeluBackward gelu_before(const Gemm& op) { return {.x = op.gelu_input, .dy = op.c, .dx = op.c}; }

}  // namespace megalith

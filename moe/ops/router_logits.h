// Logits of a router in fp64, for --moe-router-dtype fp64: logits = x W^T, of which each element is one fp64 sum in
// ascending order. Its bits depend on its row of x and of W alone. T: tokens, E: experts, H: hidden size.
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

struct RouterLogits {
  MEGALITH_OP(RouterLogits, "router_logits");
  Tensor x;       // [T, H] bf16 | fp32
  Tensor weight;  // [E, H] dtype of x
  Tensor logits;  // [T, E] fp64 out
};

}  // namespace megalith

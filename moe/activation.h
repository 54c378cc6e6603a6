// Activation of an MLP on rows sorted by expert, times the rows' weights.
#pragma once

#include "core/layers/mlp.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith {

// Launches `op`, or for another activation its counterpart, whose x and dx are [R, F].
void launch_routed_activation(const Context& ctx, Activation activation, const RoutedSwigluForward& op);
void launch_routed_activation_backward(const Context& ctx, Activation activation, const RoutedSwigluBackward& op);

}  // namespace megalith

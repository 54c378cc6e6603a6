#include "moe/activation.h"

#include "moe/ops/routed_activation.h"

namespace megalith {

void launch_routed_activation(const Context& ctx, Activation activation, const RoutedSwigluForward& op) {
  if (activation == Activation::kSwiglu) return launch(ctx.compute, op);
  launch(ctx.compute, RoutedActivationForward{.x = op.x,
                                              .row_weight = op.row_weight,
                                              .offsets = op.offsets,
                                              .y = op.y,
                                              .function = pointwise_of(activation)});
}

void launch_routed_activation_backward(const Context& ctx, Activation activation, const RoutedSwigluBackward& op) {
  if (activation == Activation::kSwiglu) return launch(ctx.compute, op);
  launch(ctx.compute, RoutedActivationBackward{.x = op.x,
                                               .dy = op.dy,
                                               .row_weight = op.row_weight,
                                               .offsets = op.offsets,
                                               .dx = op.dx,
                                               .y = op.y,
                                               .d_row_weight_partial = op.d_row_weight_partial,
                                               .function = pointwise_of(activation)});
}

}  // namespace megalith

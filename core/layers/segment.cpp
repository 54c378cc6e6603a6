#include "core/layers/segment.h"

#include "core/ops/activation.h"

namespace megalith {

Layer::Activated Layer::forward_gelu(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const {
  const Tensor input = forward(ctx, mb, x, stash);
  const Tensor output = ctx.empty(input.shape, input.dtype, "activation");
  launch(ctx.compute, GeluForward{.x = input, .y = output});
  return {.input = input, .output = output};
}

Tensor Layer::backward_data_gelu(const Context& ctx, const Microbatch& mb, const Tensor& dy, const Tensor& gelu_input,
                                 Stash& stash) const {
  const Tensor gradient = backward_data(ctx, mb, dy, stash);
  launch(ctx.compute, GeluBackward{.x = gelu_input, .dy = gradient, .dx = gradient});
  return gradient;
}

}  // namespace megalith

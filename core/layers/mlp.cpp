#include "core/layers/mlp.h"

#include "core/base/error.h"
#include "core/layers/row_sums.h"

namespace megalith {

Pointwise pointwise_of(Activation activation) {
  require(activation != Activation::kSwiglu, "SwiGLU has a gate");
  if (activation == Activation::kSquaredRelu) return Pointwise::kSquaredRelu;
  return activation == Activation::kGeluExact ? Pointwise::kGeluExact : Pointwise::kGeluTanh;
}

void launch_activation(const Context& ctx, Activation activation, const Tensor& x, const Tensor& y) {
  switch (activation) {
    case Activation::kSwiglu: return launch(ctx.compute, SwigluForward{.x = x, .y = y});
    case Activation::kSquaredRelu: return launch(ctx.compute, SquaredReluForward{.x = x, .y = y});
    case Activation::kGeluTanh:
    case Activation::kGeluExact:
      return launch(ctx.compute, GeluForward{.x = x, .y = y, .exact = activation == Activation::kGeluExact});
  }
}

void launch_activation_backward(const Context& ctx, Activation activation, const Tensor& x, const Tensor& dy,
                                const Tensor& dx, const Tensor& y) {
  if (activation == Activation::kSwiglu) return launch(ctx.compute, SwigluBackward{.x = x, .dy = dy, .dx = dx, .y = y});
  if (activation == Activation::kSquaredRelu) {
    launch(ctx.compute, SquaredReluBackward{.x = x, .dy = dy, .dx = dx});
  } else {
    launch(ctx.compute, GeluBackward{.x = x, .dy = dy, .dx = dx, .exact = activation == Activation::kGeluExact});
  }
  if (y) launch_activation(ctx, activation, x, y);
}

Tensor Mlp::activate(const Context& ctx, const Tensor& x) const {
  const std::int64_t columns = spec_.activation == Activation::kSwiglu ? x.size(1) / 2 : x.size(1);
  const Tensor y = ctx.empty({x.size(0), columns}, x.dtype, "activation");
  launch_activation(ctx, spec_.activation, x, y);
  return y;
}

Linear::Activated Mlp::forward_fc1(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const {
  if (spec_.activation == Activation::kGeluTanh) return parts_.fc1->forward_gelu(ctx, mb, x, stash);
  const Tensor pre_activation = parts_.fc1->forward(ctx, mb, x, stash);
  return {.input = pre_activation, .output = activate(ctx, pre_activation)};
}

Tensor Mlp::backward_data_fc2(const Context& ctx, const Microbatch& mb, const Tensor& dy, const Tensor& pre_activation,
                              Stash& stash) const {
  const bool refills = !stash.has(Linear::kInput);
  if (refills && spec_.activation != Activation::kSwiglu) stash.refill(Linear::kInput, activate(ctx, pre_activation));
  if (spec_.activation == Activation::kGeluTanh) {
    return parts_.fc2->backward_data_gelu(ctx, mb, dy, pre_activation, stash);
  }
  const Tensor d_activation = parts_.fc2->backward_data(ctx, mb, dy, stash);
  if (spec_.activation != Activation::kSwiglu) {
    launch_activation_backward(ctx, spec_.activation, pre_activation, d_activation, d_activation, {});
    return d_activation;
  }
  const Tensor gradient = ctx.empty(pre_activation.shape, pre_activation.dtype, "activation gradient");
  if (refills) stash.refill(Linear::kInput, d_activation);  // SwigluBackward below writes the activation into it
  launch_activation_backward(ctx, spec_.activation, pre_activation, d_activation, gradient,
                             refills ? d_activation : Tensor{});
  return gradient;
}

TensorList Mlp::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  const Tensor normed = parts_.norm.forward(ctx, inputs[0], inputs[1], stash.child(kNorm));
  const Tensor residual = inputs[1] ? stash.child(kNorm)[Norm::kNormInput] : inputs[0];
  const Linear::Activated fc1 = forward_fc1(ctx, mb, normed, stash.child(kFc1));
  stash.save(kPreActivation, SlotKind::kAct, fc1.input);
  const Tensor hidden = parts_.fc2->forward(ctx, mb, fc1.output, stash.child(kFc2));
  return {apply_dropout(ctx, mb, spec_.dropout, hidden), residual};
}

TensorList Mlp::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                              Stash& stash) const {
  const Tensor& pre_activation = stash.at(kPreActivation, "fc1 output");
  Stash& fc1 = stash.child(kFc1);
  Stash& fc2 = stash.child(kFc2);
  const Tensor d_hidden = apply_dropout(ctx, mb, spec_.dropout, output_gradients[0]);
  const Tensor d_pre_activation = backward_data_fc2(ctx, mb, d_hidden, pre_activation, fc2);
  const Tensor d_normed = parts_.fc1->backward_data(ctx, mb, d_pre_activation, fc1);
  const Tensor d_residual = parts_.norm.backward_data(ctx, d_normed, output_gradients[1], stash.child(kNorm), &fc1);
  return {d_residual, d_residual};
}

void Mlp::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  RowSums sums(ctx);
  parts_.fc2->backward_weight(sums.later(), mb, stash.child(kFc2));
  parts_.fc1->backward_weight(sums.later(), mb, stash.child(kFc1));
  parts_.norm.backward_weight(sums.later(), stash.child(kNorm));
  sums.add();
}

}  // namespace megalith

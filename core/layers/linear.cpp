#include "core/layers/linear.h"

#include "core/ops/gemm.h"
#include "core/ops/reduce.h"

namespace megalith {

namespace {

Parameter parameter_of(const LinearSpec& spec, bool is_bias) {
  const char* suffix = is_bias ? ".bias" : ".weight";
  Parameter parameter{.shape = is_bias ? Shape{spec.outputs} : Shape{spec.outputs, spec.inputs},
                      .initializer = is_bias ? Initializer::kZeros : Initializer::kNormal,
                      .init_std = spec.init_std,
                      .decay = !is_bias};
  for (const LinearSpec::Part& part : spec.parts)
    parameter.parts.push_back({.name = part.name + suffix, .rows = part.outputs});
  if (spec.parts.empty()) parameter.parts.push_back({.name = spec.name + suffix, .rows = spec.outputs});
  return parameter;
}

}  // namespace

Tensor matmul(const Context& ctx, const Tensor& x, const Tensor& w, bool transpose_x, bool transpose_w,
              const Tensor& bias) {
  const Tensor y = ctx.empty({x.size(transpose_x ? 1 : 0), w.size(transpose_w ? 0 : 1)}, x.dtype, "matmul");
  launch(ctx, Gemm{.a = x, .b = w, .c = y, .transpose_a = transpose_x, .transpose_b = transpose_w, .bias = bias});
  return y;
}

void accumulate_linear_gradient(const Context& ctx, const Tensor& x, const Tensor& dy, const Parameter& weight,
                                const Parameter* bias) {
  launch(ctx, Gemm{.a = dy, .b = x, .c = weight.main_grad, .transpose_a = true, .accumulate = true});
  if (bias != nullptr) launch(ctx, ReduceRows{.x = dy, .out = bias->main_grad, .accumulate = true});
}

Linear::Linear(ParameterStore& store, const LinearSpec& spec)
    : input_kind_(spec.input_kind), weight_(store.add(parameter_of(spec, false))) {
  if (spec.bias) bias_ = &store.add(parameter_of(spec, true));
}

Tensor Linear::forward(const Context& ctx, const Microbatch&, const Tensor& x, Stash& stash) const {
  stash.save(kInput, input_kind_, x);
  return matmul(ctx, x, weight_.weight, false, true, bias_ != nullptr ? bias_->weight : Tensor{});
}

Tensor Linear::backward_data(const Context& ctx, const Microbatch&, const Tensor& dy, Stash& stash) const {
  stash[kOutputGradient] = dy;
  return matmul(ctx, dy, weight_.weight);
}

Layer::Activated Linear::forward_gelu(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const {
  if (ctx.deterministic) return Layer::forward_gelu(ctx, mb, x, stash);
  stash.save(kInput, input_kind_, x);
  const Shape shape{x.size(0), weight_.shape[0]};
  const Activated y{.input = ctx.empty(shape, x.dtype, "matmul"), .output = ctx.empty(shape, x.dtype, "activation")};
  launch(ctx, Gemm{.a = x,
                   .b = weight_.weight,
                   .c = y.output,
                   .transpose_b = true,
                   .bias = bias_ != nullptr ? bias_->weight : Tensor{},
                   .pre_activation = y.input});
  return y;
}

Tensor Linear::backward_data_gelu(const Context& ctx, const Microbatch&, const Tensor& dy, const Tensor& gelu_input,
                                  Stash& stash) const {
  stash[kOutputGradient] = dy;
  const Tensor dx = ctx.empty(gelu_input.shape, dy.dtype, "activation gradient");
  launch(ctx, Gemm{.a = dy, .b = weight_.weight, .c = dx, .gelu_input = gelu_input});
  return dx;
}

void Linear::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  accumulate_linear_gradient(ctx, stash.at(kInput, weight_.name()), stash.at(kOutputGradient, weight_.name()), weight_,
                             bias_);
}

}  // namespace megalith

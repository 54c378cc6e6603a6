#include "core/layers/norm.h"

#include "core/layers/linear.h"
#include "core/layers/row_sums.h"
#include "core/ops/norm/norm.h"

namespace megalith {

Norm::Norm(ParameterStore& store, const Spec& spec)
    : spec_(spec),
      weight_(&store.add({.parts = {spec.split.shared(spec.name + ".weight", spec.partial_gradient)},
                          .shape = {spec.size},
                          .initializer = spec.zero_centered ? Initializer::kZeros : Initializer::kOnes,
                          .decay = false})) {
  if (spec.kind != NormKind::kLayerNorm) return;
  bias_ = &store.add({.parts = {spec.split.shared(spec.name + ".bias", spec.partial_gradient)},
                      .shape = {spec.size},
                      .initializer = Initializer::kZeros,
                      .decay = false});
}

void Norm::run(const Context& ctx, const Tensor& x, const Tensor& residual, const Tensor& sum, const Tensor& y,
               const Tensor& mean, const Tensor& rstd) const {
  if (spec_.kind == NormKind::kRmsNorm) {
    launch(ctx.compute, RmsNormForward{.x = x,
                                       .residual = residual,
                                       .sum = sum,
                                       .weight = weight_->weight,
                                       .y = y,
                                       .rstd = rstd,
                                       .eps = spec_.eps,
                                       .zero_centered = spec_.zero_centered});
  } else {
    launch(ctx.compute, LayerNormForward{.x = x,
                                         .residual = residual,
                                         .sum = sum,
                                         .weight = weight_->weight,
                                         .bias = bias_->weight,
                                         .y = y,
                                         .mean = mean,
                                         .rstd = rstd,
                                         .eps = spec_.eps,
                                         .zero_centered = spec_.zero_centered});
  }
}

Tensor Norm::forward(const Context& ctx, const Tensor& x, const Tensor& residual, Stash& stash) const {
  const Shape rows{x.numel() / spec_.size};
  const Tensor sum = residual ? ctx.empty(x.shape, x.dtype, "residual") : Tensor{};
  const Tensor y = ctx.empty(x.shape, x.dtype, "norm");
  const Tensor rstd = ctx.empty(rows, DType::kFp32, "norm statistics");
  const Tensor mean = spec_.kind == NormKind::kLayerNorm ? ctx.empty(rows, DType::kFp32, "norm statistics") : Tensor{};
  run(ctx, x, residual, sum, y, mean, rstd);
  stash.save(kNormInput, spec_.input_kind, residual ? sum : x);
  stash[kRstd] = rstd;
  stash[kMean] = mean;
  return y;
}

Tensor Norm::backward_data(const Context& ctx, const Tensor& dy, const Tensor& d_residual, Stash& stash,
                           Stash* reader) const {
  const Tensor dx = ctx.empty(dy.shape, dy.dtype, "norm gradient");
  backward_data_into(ctx, dy, d_residual, dx, stash, reader);
  return dx;
}

void Norm::backward_data_into(const Context& ctx, const Tensor& dy, const Tensor& d_residual, const Tensor& dx,
                              Stash& stash, Stash* reader) const {
  const Tensor& x = stash.at(kNormInput, weight_->name());
  Tensor y;
  if (reader != nullptr && !reader->has(Linear::kInput)) {
    y = ctx.empty(x.shape, x.dtype, "norm");
    reader->refill(Linear::kInput, y);
  }
  const Shape partial{norm_partials(ctx.backend()), spec_.size};
  const Tensor d_weight = ctx.empty(partial, DType::kFp32, "norm partial sums");
  stash[kWeightPartial] = d_weight;
  if (spec_.kind == NormKind::kRmsNorm) {
    launch(ctx.compute, RmsNormBackward{.dy = dy,
                                        .x = x,
                                        .weight = weight_->weight,
                                        .rstd = stash[kRstd],
                                        .d_residual = d_residual,
                                        .dx = dx,
                                        .d_weight_partial = d_weight,
                                        .y = y,
                                        .zero_centered = spec_.zero_centered});
    return;
  }
  if (y) {
    const Tensor mean = ctx.empty(stash[kMean].shape, DType::kFp32, "norm statistics");
    run(ctx, x, {}, {}, y, mean, ctx.empty(mean.shape, DType::kFp32, "norm statistics"));
  }
  const Tensor d_bias = ctx.empty(partial, DType::kFp32, "norm partial sums");
  stash[kBiasPartial] = d_bias;
  launch(ctx.compute, LayerNormBackward{.dy = dy,
                                        .x = x,
                                        .weight = weight_->weight,
                                        .mean = stash[kMean],
                                        .rstd = stash[kRstd],
                                        .d_residual = d_residual,
                                        .dx = dx,
                                        .d_weight_partial = d_weight,
                                        .d_bias_partial = d_bias,
                                        .zero_centered = spec_.zero_centered});
}

void Norm::backward_weight(const Context& ctx, Stash& stash) const {
  std::vector<RowSum> sums = {{.x = stash.at(kWeightPartial, weight_->name()), .out = weight_->main_grad}};
  if (bias_ != nullptr) sums.push_back({.x = stash.at(kBiasPartial, bias_->name()), .out = bias_->main_grad});
  add_row_sums(ctx, sums);
}

}  // namespace megalith

#include "moe/experts.h"

#include <utility>

#include "core/base/error.h"
#include "moe/activation.h"
#include "moe/ops/grouped_bias.h"
#include "moe/routed.h"

namespace megalith {

namespace {

// Sets the bound for consumers that keep or move `x`; GEMMs use the offsets instead.
Tensor with_bound(Tensor x, const std::int32_t* bound) {
  x.bound = bound;
  return x;
}

const std::int32_t* end_of(const Tensor& offsets) { return offsets.as<const std::int32_t>() + offsets.numel() - 1; }

// Part of the logical tensor [E F, H] or [E F] that this rank holds: its FFN columns' rows of each of its experts.
LogicalTensor rows_of(const Experts::Spec& spec, const std::string& name, bool is_bias = false) {
  const ExpertSplit& split = spec.split;
  const std::int64_t experts = spec.experts / split.ranks, ffn = spec.ffn / split.column_ranks;
  LogicalTensor part{.name = spec.name + name,
                     .rows = experts * ffn,
                     .global_shape = {spec.experts * spec.ffn},
                     .global_row = split.rank * experts * spec.ffn + split.column_rank * ffn};
  if (!is_bias) part.global_shape = {spec.experts * spec.ffn, spec.hidden};
  if (split.column_ranks > 1) {
    part.stripe = ffn;
    part.stripe_pitch = spec.ffn;
  }
  return part;
}

// Part of the logical tensor [E H, F] that this rank holds.
LogicalTensor columns_of(const Experts::Spec& spec, const char* name) {
  const ExpertSplit& split = spec.split;
  const std::int64_t rows = spec.experts / split.ranks * spec.hidden;
  return {.name = spec.name + name,
          .rows = rows,
          .global_shape = {spec.experts * spec.hidden, spec.ffn},
          .global_row = split.rank * rows,
          .global_column = split.column_rank * (spec.ffn / split.column_ranks)};
}

// Part of the logical tensor [E H] that this rank holds; ranks with other columns of the same experts hold it too.
LogicalTensor bias_of(const Experts::Spec& spec, const char* name) {
  const ExpertSplit& split = spec.split;
  const std::int64_t rows = spec.experts / split.ranks * spec.hidden;
  return {.name = spec.name + name,
          .rows = rows,
          .global_shape = {spec.experts * spec.hidden},
          .global_row = split.rank * rows,
          .holders = split.column_ranks,
          .counted = split.column_rank == 0};
}

Parameter* add(ParameterStore& store, LogicalTensor part, std::int64_t columns, float std) {
  const Shape shape{part.rows, columns};
  return &store.add({.parts = {std::move(part)}, .shape = shape, .init_std = std, .one_write = true});
}

Parameter* add_bias(ParameterStore& store, LogicalTensor part) {
  const Shape shape{part.rows};
  return &store.add({.parts = {std::move(part)},
                     .shape = shape,
                     .initializer = Initializer::kZeros,
                     .decay = false,
                     .one_write = true});
}

std::int64_t local_ffn(const Experts::Spec& spec) {
  const ExpertSplit& split = spec.split;
  require(spec.experts % split.ranks == 0 && spec.ffn % split.column_ranks == 0, "ranks must split experts evenly");
  return spec.ffn / split.column_ranks;
}

}  // namespace

Experts::Experts(ParameterStore& store, const Spec& spec) : spec_(spec), ffn_(local_ffn(spec)) {
  const bool gated = spec.activation == Activation::kSwiglu;
  const std::string fc1 = gated ? "linear_gate" : "linear_fc1";
  fc1_ = add(store, rows_of(spec, fc1 + ".weight"), spec.hidden, spec.init_std);
  up_ = gated ? add(store, rows_of(spec, "linear_up.weight"), spec.hidden, spec.init_std) : nullptr;
  fc2_ = add(store, columns_of(spec, "linear_fc2.weight"), ffn_, spec.output_init_std);
  if (!spec.bias) return;
  fc1_bias_ = add_bias(store, rows_of(spec, fc1 + ".bias", true));
  if (gated) up_bias_ = add_bias(store, rows_of(spec, "linear_up.bias", true));
  fc2_bias_ = add_bias(store, bias_of(spec, "linear_fc2.bias"));
}

void Experts::forward_fc1(const Context& ctx, const GroupedGemmSwiglu& op) const {
  if (spec_.fused && has_gate() && !spec_.bias) return launch(ctx, op);
  launch(ctx, product_of(op));
  if (fc1_bias_ != nullptr)
    launch(ctx.compute, GroupedBias{.x = op.h.slice(1, 0, ffn_), .bias = fc1_bias_->weight, .offsets = op.offsets});
  if (up_bias_ != nullptr)
    launch(ctx.compute, GroupedBias{.x = op.h.slice(1, ffn_, ffn_), .bias = up_bias_->weight, .offsets = op.offsets});
  launch_routed_activation(ctx, spec_.activation, swiglu_of(op));
}

TensorList Experts::forward(const Context& ctx, const Microbatch&, const TensorList& inputs, Stash& stash) const {
  const auto [x, residual, row_weight, token, offsets] = from_list<Arrived>(inputs);
  const std::int64_t rows = token.size(0);
  const GroupedGemmSwiglu fc1{.a = x,
                              .index = token,
                              .offsets = offsets,
                              .gate = fc1_->weight,
                              .up = has_gate() ? up_->weight : Tensor{},
                              .row_weight = row_weight,
                              .h = ctx.empty({rows, has_gate() ? 2 * ffn_ : ffn_}, x.dtype, "experts' fc1 output"),
                              .y = ctx.empty({rows, ffn_}, x.dtype, "experts' activation")};
  forward_fc1(ctx, fc1);
  const Tensor out = ctx.empty({rows, spec_.hidden}, x.dtype, "experts' rows");
  launch(ctx, GroupedGemm{.a = fc1.y, .offsets = offsets, .b = fc2_->weight, .c = out});
  if (adds_output_bias())
    launch(ctx.compute, GroupedBias{.x = out, .bias = fc2_bias_->weight, .row_weight = row_weight, .offsets = offsets});
  // With a dispatch, only the device knows the numbers of tokens and rows.
  const std::int32_t* const tokens_end = dispatched(stash).position.bound;
  const std::int32_t* const rows_end = tokens_end == nullptr ? nullptr : end_of(offsets);
  stash.save(kInput, SlotKind::kExpertFc1, with_bound(x, tokens_end));
  stash.save(kPreActivation, SlotKind::kMoeAct, with_bound(fc1.h, rows_end));
  stash.save(kActivation, SlotKind::kExpertFc2, with_bound(fc1.y, rows_end));
  stash[kTokenOfRow] = token;
  stash[kExpertOffsets] = offsets;
  stash[kWeightOfRow] = row_weight;
  return {out, residual};
}

void Experts::backward_fc2(const Context& ctx, const GroupedGemmSwigluBackward& op) const {
  if (spec_.fused && has_gate() && !spec_.bias) return launch(ctx, op);
  launch(ctx, product_of(op));
  launch_routed_activation_backward(ctx, spec_.activation, swiglu_of(op));
  if (adds_output_bias())
    launch(ctx.compute, GroupedBiasDot{.dy = op.dy,
                                       .index = op.index,
                                       .bias = fc2_bias_->weight,
                                       .offsets = op.offsets,
                                       .d_row_weight_partial = op.d_row_weight_partial});
}

TensorList Experts::backward_data(const Context& ctx, const Microbatch&, const TensorList& output_gradients,
                                  Stash& stash) const {
  const auto [dy, d_residual] = from_list<ExpertRows>(output_gradients);
  const Tensor& offsets = stash.at(kExpertOffsets, "expert offsets");
  const Tensor h = with_bound(stash.at(kPreActivation, "experts' fc1 output"), nullptr);
  const std::int64_t rows = h.size(0), partials = (ffn_ + kPartialColumns - 1) / kPartialColumns;
  const GroupedGemmSwigluBackward fc2{
      .dy = dy,
      .index = stash.at(kTokenOfRow, "tokens of routed rows"),
      .offsets = offsets,
      .b = fc2_->weight,
      .h = h,
      .row_weight = stash.at(kWeightOfRow, "weights of routed rows"),
      .dh = h,  // in place; nothing reads h later
      .y = ctx.empty({rows, ffn_}, h.dtype, "experts' activation"),
      .d_row_weight_partial = ctx.empty({rows, partials}, DType::kFp32, "row weights' gradient")};
  backward_fc2(ctx, fc2);
  if (!stash.has(kActivation)) stash.refill(kActivation, fc2.y);
  stash[kOutputGradient] = dy;
  const Tensor d_rows = ctx.empty({rows, spec_.hidden}, dy.dtype, "experts' rows gradient");
  launch(ctx, GroupedGemm{.a = fc2.dh,
                          .offsets = offsets,
                          .b = fc1_->weight,
                          .b2 = has_gate() ? up_->weight : Tensor{},
                          .c = d_rows,
                          .transpose_b = false});
  return {d_rows, d_residual, fc2.d_row_weight_partial};
}

void Experts::backward_weight_of_biases(const Context& ctx, const Tensor& dy, const Tensor& dh, Stash& stash) const {
  const Tensor& offsets = stash[kExpertOffsets];
  launch(ctx.compute, GroupedBiasGradient{.dy = dy,
                                          .index = stash[kTokenOfRow],
                                          .row_weight = stash.at(kWeightOfRow, "weights of routed rows"),
                                          .offsets = offsets,
                                          .d_bias = fc2_bias_->main_grad,
                                          .accumulate = !fc2_bias_->overwrites});
  std::int64_t column = 0;
  for (const Parameter* bias : {fc1_bias_, up_bias_}) {
    if (bias == nullptr) continue;
    launch(ctx.compute, GroupedBiasGradient{.dy = dh.slice(1, column, ffn_),
                                            .offsets = offsets,
                                            .d_bias = bias->main_grad,
                                            .accumulate = !bias->overwrites});
    column += ffn_;
  }
}

void Experts::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  const Tensor &token = stash.at(kTokenOfRow, "tokens of routed rows"), &offsets = stash[kExpertOffsets];
  const Tensor& dy = stash.at(kOutputGradient, "experts' output gradient");
  const Tensor dh = with_bound(stash.at(kPreActivation, "gradient of experts' fc1 output"), nullptr);
  launch(ctx, GroupedGemmWgrad{.a = dy,
                               .a_index = token,
                               .b = with_bound(stash.at(kActivation, "experts' activation"), nullptr),
                               .offsets = offsets,
                               .c = fc2_->main_grad,
                               .accumulate = !fc2_->overwrites});
  launch(ctx, GroupedGemmWgrad{.a = dh,
                               .b = with_bound(stash.at(kInput, "experts' input"), nullptr),
                               .b_index = token,
                               .offsets = offsets,
                               .c = fc1_->main_grad,
                               .c2 = has_gate() ? up_->main_grad : Tensor{},
                               .accumulate = !fc1_->overwrites});
  if (spec_.bias) backward_weight_of_biases(ctx, dy, dh, stash);
}

}  // namespace megalith

#include "moe/experts.h"

#include <utility>

#include "core/base/error.h"
#include "moe/routed.h"

namespace megalith {

namespace {

// Sets the bound for consumers that keep or move `x`; GEMMs use the offsets instead.
Tensor with_bound(Tensor x, const std::int32_t* bound) {
  x.bound = bound;
  return x;
}

const std::int32_t* end_of(const Tensor& offsets) { return offsets.as<const std::int32_t>() + offsets.numel() - 1; }

// Part of the logical tensor [E F, H] that this rank holds: its FFN columns' rows of each of its experts.
LogicalTensor rows_of(const Experts::Spec& spec, const char* name) {
  const ExpertSplit& split = spec.split;
  const std::int64_t experts = spec.experts / split.ranks, ffn = spec.ffn / split.column_ranks;
  LogicalTensor part{.name = spec.name + name,
                     .rows = experts * ffn,
                     .global_shape = {spec.experts * spec.ffn, spec.hidden},
                     .global_row = split.rank * experts * spec.ffn + split.column_rank * ffn};
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

Parameter& add(ParameterStore& store, LogicalTensor part, std::int64_t columns, float std) {
  const Shape shape{part.rows, columns};
  return store.add({.parts = {std::move(part)}, .shape = shape, .init_std = std, .one_write = true});
}

std::int64_t local_ffn(const Experts::Spec& spec) {
  const ExpertSplit& split = spec.split;
  require(spec.experts % split.ranks == 0 && spec.ffn % split.column_ranks == 0, "ranks must split experts evenly");
  return spec.ffn / split.column_ranks;
}

}  // namespace

Experts::Experts(ParameterStore& store, const Spec& spec)
    : spec_(spec),
      ffn_(local_ffn(spec)),
      gate_(add(store, rows_of(spec, "linear_gate.weight"), spec.hidden, spec.init_std)),
      up_(add(store, rows_of(spec, "linear_up.weight"), spec.hidden, spec.init_std)),
      down_(add(store, columns_of(spec, "linear_fc2.weight"), ffn_, spec.output_init_std)) {}

TensorList Experts::forward(const Context& ctx, const Microbatch&, const TensorList& inputs, Stash& stash) const {
  const auto [x, residual, row_weight, token, offsets] = from_list<Arrived>(inputs);
  const std::int64_t rows = token.size(0);
  const GroupedGemmSwiglu fc1{.a = x,
                              .index = token,
                              .offsets = offsets,
                              .gate = gate_.weight,
                              .up = up_.weight,
                              .row_weight = row_weight,
                              .h = ctx.empty({rows, 2 * ffn_}, x.dtype, "experts' fc1 output"),
                              .y = ctx.empty({rows, ffn_}, x.dtype, "experts' activation")};
  if (spec_.fused) {
    launch(ctx, fc1);
  } else {
    launch(ctx, product_of(fc1));
    launch(ctx.compute, swiglu_of(fc1));
  }
  const Tensor out = ctx.empty({rows, spec_.hidden}, x.dtype, "experts' rows");
  launch(ctx, GroupedGemm{.a = fc1.y, .offsets = offsets, .b = down_.weight, .c = out});
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
      .b = down_.weight,
      .h = h,
      .row_weight = stash.at(kWeightOfRow, "weights of routed rows"),
      .dh = h,  // in place; nothing reads h later
      .y = ctx.empty({rows, ffn_}, h.dtype, "experts' activation"),
      .d_row_weight_partial = ctx.empty({rows, partials}, DType::kFp32, "row weights' gradient")};
  if (spec_.fused) {
    launch(ctx, fc2);
  } else {
    launch(ctx, product_of(fc2));
    launch(ctx.compute, swiglu_of(fc2));
  }
  if (!stash.has(kActivation)) stash.refill(kActivation, fc2.y);
  stash[kOutputGradient] = dy;
  const Tensor d_rows = ctx.empty({rows, spec_.hidden}, dy.dtype, "experts' rows gradient");
  launch(ctx,
         GroupedGemm{
             .a = fc2.dh, .offsets = offsets, .b = gate_.weight, .b2 = up_.weight, .c = d_rows, .transpose_b = false});
  return {d_rows, d_residual, fc2.d_row_weight_partial};
}

void Experts::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  const Tensor &token = stash.at(kTokenOfRow, "tokens of routed rows"), &offsets = stash[kExpertOffsets];
  launch(ctx, GroupedGemmWgrad{.a = stash.at(kOutputGradient, "experts' output gradient"),
                               .a_index = token,
                               .b = with_bound(stash.at(kActivation, "experts' activation"), nullptr),
                               .offsets = offsets,
                               .c = down_.main_grad,
                               .accumulate = !down_.overwrites});
  launch(ctx, GroupedGemmWgrad{.a = with_bound(stash.at(kPreActivation, "gradient of experts' fc1 output"), nullptr),
                               .b = with_bound(stash.at(kInput, "experts' input"), nullptr),
                               .b_index = token,
                               .offsets = offsets,
                               .c = gate_.main_grad,
                               .c2 = up_.main_grad,
                               .accumulate = !gate_.overwrites});
}

}  // namespace megalith

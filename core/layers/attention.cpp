#include "core/layers/attention.h"

#include "core/layers/row_sums.h"
#include "core/ops/attention/attention.h"
#include "core/ops/attention/rope.h"
#include "core/ops/elementwise/dropout.h"

namespace megalith {

Tensor apply_dropout(const Context& ctx, const Microbatch& mb, const DropoutSpec& spec, const Tensor& x) {
  if (spec.p == 0 || mb.mode != Mode::kTrain) return x;
  const Tensor y = ctx.empty(x.shape, x.dtype, "dropout");
  launch(ctx.compute, Dropout{.x = x,
                              .y = y,
                              .p = spec.p,
                              .seed = ctx.seed,
                              .layer = spec.layer,
                              .site = spec.site,
                              .rows_per_sample = mb.seq_length,
                              .parameters = mb.parameters,
                              .first_row = spec.row_part * x.size(0),
                              .part = mb.part});
  return y;
}

Heads Attention::split(const Tensor& qkv) const {
  const std::int64_t d = core().head_dim, n = core().heads, k = core().query_groups;
  return {.q = qkv.slice(1, 0, n * d).split_dim(1, n),
          .k = qkv.slice(1, n * d, k * d).split_dim(1, k),
          .v = qkv.slice(1, (n + k) * d, k * d).split_dim(1, k)};
}

void Attention::rotate(const Context& ctx, const Microbatch& mb, const Tensor& heads, bool backward) const {
  if (spec_.rotary_dim == 0) return;
  const Tensor x = by_sequence(mb, heads);
  launch(ctx.compute, Rope{.x = x,
                           .y = x,
                           .theta = spec_.rotary_base,
                           .rotary_dim = spec_.rotary_dim,
                           .scaling = spec_.rotary_scaling,
                           .backward = backward,
                           .part = mb.positions ? SequencePart{} : mb.part,
                           .start = mb.cache != nullptr ? mb.cache->start : nullptr,
                           .positions = mb.positions});
}

Tensor Attention::attend_cached(const Context& ctx, const Microbatch& mb, const Heads& heads) const {
  const Tensor q = by_sequence(mb, heads.q);
  const auto layer = static_cast<std::size_t>(spec_.layer);
  const Tensor& keys = mb.cache->keys[layer];
  const Tensor& values = mb.cache->values[layer];
  launch(ctx.compute, KvCacheAppend{.k = by_sequence(mb, heads.k),
                                    .v = by_sequence(mb, heads.v),
                                    .k_cache = keys,
                                    .v_cache = values,
                                    .start = mb.cache->start});
  const Tensor out = ctx.empty({q.size(0) * q.size(1), core().heads * core().head_dim}, q.dtype, "attention output");
  launch(ctx.compute, CachedAttention{.q = q,
                                      .k_cache = keys,
                                      .v_cache = values,
                                      .out = by_sequence(mb, out.split_dim(1, core().heads)),
                                      .start = mb.cache->start,
                                      .scale = core().scale(),
                                      .window = core().window});
  return out;
}

Tensor Attention::decode(const Context& ctx, const Microbatch& mb, const Heads& heads) const {
  const auto layer = static_cast<std::size_t>(spec_.layer);
  const Tensor out = ctx.empty({heads.q.size(0), core().heads * core().head_dim}, heads.q.dtype, "attention output");
  launch(ctx, DecodeAttention{.q = by_sequence(mb, heads.q),
                              .k = by_sequence(mb, heads.k),
                              .v = by_sequence(mb, heads.v),
                              .k_cache = mb.cache->keys[layer],
                              .v_cache = mb.cache->values[layer],
                              .out = by_sequence(mb, out.split_dim(1, core().heads)),
                              .start = mb.cache->start,
                              .scale = core().scale(),
                              .theta = spec_.rotary_base,
                              .rotary_dim = spec_.rotary_dim,
                              .scaling = spec_.rotary_scaling,
                              .window = core().window});
  return out;
}

TensorList Attention::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  const Tensor normed = parts_.norm.forward(ctx, inputs[0], inputs[1], stash.child(kNorm));
  const Tensor residual = inputs[1] ? stash.child(kNorm)[Norm::kNormInput] : inputs[0];
  const Tensor qkv = parts_.qkv->forward(ctx, mb, normed, stash.child(kQkvLinear));
  Heads heads = split(qkv);
  if (parts_.q_norm) {
    heads.q = parts_.q_norm->forward(ctx, heads.q, {}, stash.child(kQNorm));
    heads.k = parts_.k_norm->forward(ctx, heads.k, {}, stash.child(kKNorm));
  }
  Tensor out;
  if (mb.cache != nullptr && mb.seq_length == 1) {
    out = decode(ctx, mb, heads);
  } else {
    rotate(ctx, mb, heads.q, false);
    rotate(ctx, mb, heads.k, false);
    out =
        mb.cache != nullptr ? attend_cached(ctx, mb, heads) : parts_.core->forward(ctx, mb, heads, stash.child(kCore));
  }
  const Tensor hidden = parts_.proj->forward(ctx, mb, out, stash.child(kProj));
  return {apply_dropout(ctx, mb, spec_.dropout, hidden), residual};
}

TensorList Attention::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                    Stash& stash) const {
  // Recomputes the slots that forward did not keep.
  if (Stash& core = stash.child(kCore); !core.has(CoreAttention::kOut))
    stash.child(kProj).refill(Linear::kInput, parts_.core->forward_again(ctx, mb, core));
  const Tensor d_hidden = apply_dropout(ctx, mb, spec_.dropout, output_gradients[0]);
  const Tensor d_out = parts_.proj->backward_data(ctx, mb, d_hidden, stash.child(kProj));
  const Tensor d_qkv = ctx.empty({d_out.size(0), (core().heads + 2 * core().query_groups) * core().head_dim},
                                 d_out.dtype, "qkv gradient");
  const Heads grads = split(d_qkv);
  Heads targets = grads;  // gradients of q and k ahead of the QK norm's backward, if there is one
  if (parts_.q_norm) {
    targets.q = ctx.empty(grads.q.shape, d_out.dtype, "normed q gradient");
    targets.k = ctx.empty(grads.k.shape, d_out.dtype, "normed k gradient");
  }
  parts_.core->backward_data(ctx, mb, d_out, targets, stash.child(kCore));
  rotate(ctx, mb, targets.q, true);
  rotate(ctx, mb, targets.k, true);
  if (parts_.q_norm) {
    parts_.q_norm->backward_data_into(ctx, targets.q, {}, grads.q, stash.child(kQNorm));
    parts_.k_norm->backward_data_into(ctx, targets.k, {}, grads.k, stash.child(kKNorm));
  }
  const Tensor d_normed = parts_.qkv->backward_data(ctx, mb, d_qkv, stash.child(kQkvLinear));
  const Tensor d_residual =
      parts_.norm.backward_data(ctx, d_normed, output_gradients[1], stash.child(kNorm), &stash.child(kQkvLinear));
  return {d_residual, d_residual};
}

void Attention::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  RowSums sums(ctx);
  parts_.proj->backward_weight(sums.later(), mb, stash.child(kProj));
  parts_.qkv->backward_weight(sums.later(), mb, stash.child(kQkvLinear));
  if (parts_.q_norm) {
    parts_.q_norm->backward_weight(sums.later(), stash.child(kQNorm));
    parts_.k_norm->backward_weight(sums.later(), stash.child(kKNorm));
  }
  parts_.norm.backward_weight(sums.later(), stash.child(kNorm));
  sums.add();
}

}  // namespace megalith

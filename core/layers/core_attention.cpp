#include "core/layers/core_attention.h"

#include <cmath>

#include "core/ops/attention.h"

namespace megalith {

float CoreAttention::Spec::scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

void CoreAttention::save_inputs(Stash& stash, const Tensor& q, const Tensor& k, const Tensor& v) {
  stash.save(kQ, SlotKind::kCoreAttn, q);
  stash.save(kK, SlotKind::kCoreAttn, k);
  stash.save(kV, SlotKind::kCoreAttn, v);
}

TensorList CoreAttention::attend(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Tensor out = forward_again(ctx, mb, stash);
  for (const Slot slot : {kOut, kLse}) stash.save(slot, SlotKind::kAttnProj, stash[slot]);
  return {out};
}

TensorList CausalAttention::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                                    Stash& stash) const {
  save_inputs(stash, inputs[0], inputs[1], inputs[2]);
  return attend(ctx, mb, stash);
}

Tensor CausalAttention::forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Tensor q = by_sequence(mb, stash.at(kQ, "q"));
  const Tensor out = ctx.empty({q.size(0) * q.size(1), spec().heads * spec().head_dim}, q.dtype, "attention output");
  const Tensor lse = ctx.empty({q.size(0), spec().heads, q.size(1)}, DType::kFp32, "attention statistics");
  launch(ctx, AttentionForward{.q = q,
                               .k = by_sequence(mb, stash.at(kK, "k")),
                               .v = by_sequence(mb, stash.at(kV, "v")),
                               .out = by_head(mb, out),
                               .lse = lse,
                               .scale = spec().scale()});
  stash.refill(kOut, out);
  stash.refill(kLse, lse);
  return out;
}

TensorList CausalAttention::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& gradients,
                                          Stash& stash) const {
  const Tensor& lse = stash.at(kLse, "attention statistics");
  launch_attention_backward(ctx, {.q = by_sequence(mb, stash.at(kQ, "q")),
                                  .k = by_sequence(mb, stash.at(kK, "k")),
                                  .v = by_sequence(mb, stash.at(kV, "v")),
                                  .out = by_head(mb, stash.at(kOut, "attention output")),
                                  .d_out = by_head(mb, gradients[0]),
                                  .lse = lse,
                                  .delta = ctx.empty(lse.shape, DType::kFp32, "attention delta"),
                                  .dq = by_sequence(mb, gradients[1]),
                                  .dk = by_sequence(mb, gradients[2]),
                                  .dv = by_sequence(mb, gradients[3]),
                                  .workspace = {},
                                  .scale = spec().scale()});
  return {gradients[1], gradients[2], gradients[3]};
}

void launch_attention_backward(const Context& ctx, AttentionBackward op) {
  op.deterministic = ctx.deterministic;
  launch(ctx, op);
}

}  // namespace megalith

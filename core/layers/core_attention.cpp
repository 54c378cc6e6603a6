#include "core/layers/core_attention.h"

#include <cmath>

#include "core/ops/attention.h"

namespace megalith {

float CoreAttention::Spec::scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

void CoreAttention::save_inputs(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, Stash& stash) const {
  stash.save(ctx.policies, kQ, SlotKind::kCoreAttn, q);
  stash.save(ctx.policies, kK, SlotKind::kCoreAttn, k);
  stash.save(ctx.policies, kV, SlotKind::kCoreAttn, v);
}

TensorList CausalAttention::forward(Context& ctx, const TensorList& inputs, Stash& stash) const {
  save_inputs(ctx, inputs[0], inputs[1], inputs[2], stash);
  return {forward_again(ctx, stash)};
}

Tensor CausalAttention::forward_again(Context& ctx, Stash& stash) const {
  const Tensor q = by_sequence(ctx, stash.at(kQ, "q"));
  const Tensor out = ctx.empty({q.size(0) * q.size(1), spec().heads * spec().head_dim}, q.dtype, "attention output");
  const Tensor lse = ctx.empty({q.size(0), spec().heads, q.size(1)}, DType::kFp32, "attention statistics");
  launch(ctx, AttentionForward{.q = q,
                               .k = by_sequence(ctx, stash.at(kK, "k")),
                               .v = by_sequence(ctx, stash.at(kV, "v")),
                               .out = by_head(ctx, out),
                               .lse = lse,
                               .scale = spec().scale()});
  stash.save(ctx.policies, kOut, SlotKind::kAttnProj, out);
  stash.save(ctx.policies, kLse, SlotKind::kAttnProj, lse);
  return out;
}

TensorList CausalAttention::backward_data(Context& ctx, const TensorList& gradients, Stash& stash) const {
  const Tensor& lse = stash.at(kLse, "attention statistics");
  launch_attention_backward(ctx, {.q = by_sequence(ctx, stash.at(kQ, "q")),
                                  .k = by_sequence(ctx, stash.at(kK, "k")),
                                  .v = by_sequence(ctx, stash.at(kV, "v")),
                                  .out = by_head(ctx, stash.at(kOut, "attention output")),
                                  .d_out = by_head(ctx, gradients[0]),
                                  .lse = lse,
                                  .delta = ctx.empty(lse.shape, DType::kFp32, "attention delta"),
                                  .dq = by_sequence(ctx, gradients[1]),
                                  .dk = by_sequence(ctx, gradients[2]),
                                  .dv = by_sequence(ctx, gradients[3]),
                                  .workspace = {},
                                  .scale = spec().scale()});
  return {gradients[1], gradients[2], gradients[3]};
}

Tensor refill_attention(Context& ctx, const CoreAttention& attention, Stash& stash) {
  StashPolicies keep{};
  std::swap(keep, ctx.policies);
  const Tensor out = attention.forward_again(ctx, stash);
  std::swap(keep, ctx.policies);
  return out;
}

void launch_attention_backward(Context& ctx, AttentionBackward op) {
  op.deterministic = ctx.deterministic;
  launch(ctx, op);
}

}  // namespace megalith

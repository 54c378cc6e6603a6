#include "core/layers/core_attention.h"

#include <cmath>

#include "core/ops/attention/attention.h"

namespace megalith {

float CoreAttention::Spec::scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

Heads CoreAttention::saved(const Stash& stash) {
  return {.q = stash.at(kQ, "q"), .k = stash.at(kK, "k"), .v = stash.at(kV, "v")};
}

Heads CoreAttention::by_sequence(const Microbatch& mb, const Heads& heads) {
  return {.q = by_sequence(mb, heads.q), .k = by_sequence(mb, heads.k), .v = by_sequence(mb, heads.v)};
}

Tensor CoreAttention::one_sequence(const Tensor& x) {
  require(x.size(0) == 1 || x.stride(0) == x.size(1) * x.stride(1), "sequences of documents must be adjacent");
  Tensor joined = x;
  joined.shape = {1, x.size(0) * x.size(1), x.size(2), x.size(3)};
  joined.strides[0] = joined.size(1) * x.stride(1);
  return joined;
}

Tensor CoreAttention::attend(const Context& ctx, const Microbatch& mb, const Heads& heads, const Tensor& out) const {
  const auto rows = [&mb](const Tensor& x) { return mb.documents ? one_sequence(x) : x; };
  const Tensor q = rows(heads.q);
  const Tensor lse = ctx.empty({q.size(0), q.size(2), q.size(1)}, DType::kFp32, "attention statistics");
  launch(ctx, AttentionForward{.q = q,
                               .k = rows(heads.k),
                               .v = rows(heads.v),
                               .out = rows(out),
                               .lse = lse,
                               .scale = spec_.scale(),
                               .window = window(heads),
                               .query_documents = mb.documents,
                               .key_documents = mb.documents,
                               .max_length = mb.documents.max_length,
                               .pairs = mb.documents.pairs});
  return lse;
}

void CoreAttention::differentiate(const Context& ctx, const Microbatch& mb, const Heads& heads, const Done& done,
                                  const Heads& gradients) const {
  const auto rows = [&mb](const Tensor& x) { return mb.documents ? one_sequence(x) : x; };
  launch(ctx, AttentionBackward{.q = rows(heads.q),
                                .k = rows(heads.k),
                                .v = rows(heads.v),
                                .out = rows(done.out),
                                .d_out = rows(done.d_out),
                                .lse = done.lse,
                                .delta = ctx.empty(done.lse.shape, DType::kFp32, "attention delta"),
                                .dq = rows(gradients.q),
                                .dk = rows(gradients.k),
                                .dv = rows(gradients.v),
                                .workspace = {},
                                .scale = spec_.scale(),
                                .deterministic = ctx.deterministic,
                                .window = window(heads),
                                .query_documents = mb.documents,
                                .key_documents = mb.documents,
                                .max_length = mb.documents.max_length,
                                .pairs = mb.documents.pairs});
}

Tensor CoreAttention::forward(const Context& ctx, const Microbatch& mb, const Heads& heads, Stash& stash) const {
  const Heads in = inputs(ctx, mb, heads);
  stash.save(kQ, SlotKind::kCoreAttn, in.q);
  stash.save(kK, SlotKind::kCoreAttn, in.k);
  stash.save(kV, SlotKind::kCoreAttn, in.v);
  const Tensor out = forward_again(ctx, mb, stash);
  for (const Slot slot : {kOut, kLse}) stash.save(slot, SlotKind::kAttnProj, stash[slot]);
  return out;
}

Tensor CausalAttention::forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Heads heads = by_sequence(mb, saved(stash));
  const Tensor out =
      ctx.empty({heads.q.size(0) * heads.q.size(1), spec().heads * spec().head_dim}, heads.q.dtype, "attention output");
  stash.refill(kLse, attend(ctx, mb, heads, by_head(mb, out)));
  stash.refill(kOut, out);
  return out;
}

void CausalAttention::backward_data(const Context& ctx, const Microbatch& mb, const Tensor& d_out,
                                    const Heads& gradients, Stash& stash) const {
  differentiate(ctx, mb, by_sequence(mb, saved(stash)),
                {.out = by_head(mb, saved_out(stash)), .d_out = by_head(mb, d_out), .lse = saved_lse(stash)},
                by_sequence(mb, gradients));
}

}  // namespace megalith

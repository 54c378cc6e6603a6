#include "parallel/context_parallel/context_attention.h"

#include "core/ops/elementwise/elementwise.h"

namespace megalith {

namespace {

// Part of [C, B, S, heads, D] that is sent to, or received from, one rank.
Tensor part_of(const Tensor& exchanged, int rank) {
  return exchanged.slice(0, rank, 1).view({exchanged.size(1), exchanged.size(2), exchanged.size(3), exchanged.size(4)});
}

// Visits each rank's part of the heads, and its place in the exchanged tensor.
template <class Visit>
void for_each_piece(std::span<const Tensor> parts, const Tensor& exchanged, int ranks, Visit&& visit) {
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t at = 0;
    for (const Tensor& part : parts) {
      const std::int64_t count = part.size(2) / ranks;
      visit(part.slice(2, rank * count, count), part_of(exchanged, rank).slice(2, at, count));
      at += count;
    }
  }
}

// Visits each rank's rows, [B, S, ...], and their place in the complete sequence, [B, C S, ...], run by run.
template <class Visit>
void for_each_run(const Tensor& exchanged, const Tensor& whole, int ranks, Visit&& visit) {
  const std::int64_t chunk = exchanged.size(2) / 2;
  for (int rank = 0; rank < ranks; ++rank) {
    const SequencePart part = part_of_sequence(whole.size(1), rank, ranks);
    for (const std::int64_t first : {std::int64_t{0}, chunk})
      visit(part_of(exchanged, rank).slice(1, first, chunk), whole.slice(1, part.position(first, 2 * chunk), chunk));
  }
}

}  // namespace

AllToAllAttention::AllToAllAttention(const Spec& spec, ContextGroup& group) : CoreAttention(spec), group_(group) {
  require(spec.heads % group.size() == 0 && spec.query_groups % group.size() == 0,
          "AllToAllAttention: heads that the context-parallel ranks do not divide");
}

Tensor AllToAllAttention::exchange(const Context& ctx, const Tensor& sent, const std::string& label) const {
  const Tensor received = ctx.empty(sent.shape, sent.dtype, "heads received");
  CommLane& lane = group_.keys;
  lane.start(ctx.compute, AllToAll{.group = lane.group, .in = sent, .out = received, .label = label});
  lane.wait(ctx.compute);
  return received;
}

Tensor AllToAllAttention::to_whole_sequence(const Context& ctx, std::span<const Tensor> parts,
                                            const std::string& label) const {
  const int ranks = group_.size();
  std::int64_t heads = 0;
  for (const Tensor& part : parts) heads += part.size(2) / ranks;
  const Tensor& first = parts[0];
  const Tensor sent = ctx.empty({ranks, first.size(0), first.size(1), heads, first.size(3)}, first.dtype, "heads sent");
  for_each_piece(parts, sent, ranks, [&ctx](const Tensor& of_part, const Tensor& piece) {
    launch(ctx.compute, Copy{.src = of_part, .dst = piece});
  });
  const Tensor received = exchange(ctx, sent, label);
  const Tensor whole =
      ctx.empty({first.size(0), ranks * first.size(1), heads, first.size(3)}, first.dtype, "whole sequence");
  for_each_run(received, whole, ranks, [&ctx](const Tensor& rows, const Tensor& of_whole) {
    launch(ctx.compute, Copy{.src = rows, .dst = of_whole});
  });
  return whole;
}

void AllToAllAttention::to_whole_heads(const Context& ctx, const Tensor& whole, std::span<const Tensor> parts,
                                       const std::string& label) const {
  const int ranks = group_.size();
  const Tensor sent =
      ctx.empty({ranks, whole.size(0), whole.size(1) / ranks, whole.size(2), whole.size(3)}, whole.dtype, "heads sent");
  for_each_run(sent, whole, ranks, [&ctx](const Tensor& rows, const Tensor& of_whole) {
    launch(ctx.compute, Copy{.src = of_whole, .dst = rows});
  });
  const Tensor received = exchange(ctx, sent, label);
  for_each_piece(parts, received, ranks, [&ctx](const Tensor& of_part, const Tensor& piece) {
    launch(ctx.compute, Copy{.src = piece, .dst = of_part});
  });
}

Heads AllToAllAttention::split(const Tensor& whole) const {
  const std::int64_t n = spec().heads / group_.size(), k = spec().query_groups / group_.size();
  return {.q = whole.slice(2, 0, n), .k = whole.slice(2, n, k), .v = whole.slice(2, n + k, k)};
}

Heads AllToAllAttention::inputs(const Context& ctx, const Microbatch& mb, const Heads& heads) const {
  const Tensor parts[] = {by_sequence(mb, heads.q), by_sequence(mb, heads.k), by_sequence(mb, heads.v)};
  return split(to_whole_sequence(ctx, parts, "q, k and v"));
}

// kOut and kLse belong to this rank's heads.
Tensor AllToAllAttention::forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Heads heads = saved(stash);
  const Tensor& q = heads.q;
  const Tensor mine = ctx.empty(q.shape, q.dtype, "attention output of a part of the heads");
  stash.refill(kLse, attend(ctx, mb, heads, mine));
  stash.refill(kOut, mine);
  const Tensor out =
      ctx.empty({q.size(0) * q.size(1) / group_.size(), spec().heads * spec().head_dim}, q.dtype, "attention output");
  const Tensor parts[] = {by_head(mb, out)};
  to_whole_heads(ctx, mine, parts, "attention output");
  return out;
}

void AllToAllAttention::backward_data(const Context& ctx, const Microbatch& mb, const Tensor& d_out,
                                      const Heads& gradients, Stash& stash) const {
  const Tensor d_parts[] = {by_head(mb, d_out)};
  const Tensor d_mine = to_whole_sequence(ctx, d_parts, "attention output gradient");
  const Heads heads = saved(stash);
  const Tensor& q = heads.q;
  const std::int64_t width = (spec().heads + 2 * spec().query_groups) / group_.size();
  const Tensor d_whole = ctx.empty({q.size(0), q.size(1), width, q.size(3)}, q.dtype, "qkv gradient of whole sequence");
  differentiate(ctx, mb, heads, {.out = saved_out(stash), .d_out = d_mine, .lse = saved_lse(stash)}, split(d_whole));
  const Tensor parts[] = {by_sequence(mb, gradients.q), by_sequence(mb, gradients.k), by_sequence(mb, gradients.v)};
  to_whole_heads(ctx, d_whole, parts, "gradients of q, k and v");
}

}  // namespace megalith

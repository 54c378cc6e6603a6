#include "parallel/context_parallel/all_to_all_attention.h"

#include "core/ops/attention.h"
#include "core/ops/elementwise.h"

namespace megalith {

namespace {

// Of [C, B, S, heads, D] what goes to, or came from, one rank.
Tensor part_of(const Tensor& exchanged, int rank) {
  return exchanged.slice(0, rank, 1).view({exchanged.size(1), exchanged.size(2), exchanged.size(3), exchanged.size(4)});
}

// Rows of one rank, [B, S, ...], and where they stand in the whole sequence, [B, C S, ...], run by run.
template <class Visit>
void for_each_run(const Tensor& of_rank, const Tensor& whole, int rank, int ranks, Visit&& visit) {
  const std::int64_t chunk = of_rank.size(1) / 2;
  const SequencePart part = part_of_sequence(whole.size(1), rank, ranks);
  for (const std::int64_t first : {std::int64_t{0}, chunk})
    visit(of_rank.slice(1, first, chunk), whole.slice(1, part.position(first, 2 * chunk), chunk));
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
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t at = 0;
    for (const Tensor& part : parts) {
      const std::int64_t count = part.size(2) / ranks;
      launch(ctx.compute,
             Copy{.src = part.slice(2, rank * count, count), .dst = part_of(sent, rank).slice(2, at, count)});
      at += count;
    }
  }
  const Tensor received = exchange(ctx, sent, label);
  const Tensor whole =
      ctx.empty({first.size(0), ranks * first.size(1), heads, first.size(3)}, first.dtype, "whole sequence");
  for (int rank = 0; rank < ranks; ++rank) {
    for_each_run(part_of(received, rank), whole, rank, ranks, [&ctx](const Tensor& rows, const Tensor& of_whole) {
      launch(ctx.compute, Copy{.src = rows, .dst = of_whole});
    });
  }
  return whole;
}

void AllToAllAttention::to_whole_heads(const Context& ctx, const Tensor& whole, std::span<const Tensor> parts,
                                       const std::string& label) const {
  const int ranks = group_.size();
  const Tensor sent =
      ctx.empty({ranks, whole.size(0), whole.size(1) / ranks, whole.size(2), whole.size(3)}, whole.dtype, "heads sent");
  for (int rank = 0; rank < ranks; ++rank) {
    for_each_run(part_of(sent, rank), whole, rank, ranks, [&ctx](const Tensor& rows, const Tensor& of_whole) {
      launch(ctx.compute, Copy{.src = of_whole, .dst = rows});
    });
  }
  const Tensor received = exchange(ctx, sent, label);
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t at = 0;
    for (const Tensor& part : parts) {
      const std::int64_t count = part.size(2) / ranks;
      launch(ctx.compute,
             Copy{.src = part_of(received, rank).slice(2, at, count), .dst = part.slice(2, rank * count, count)});
      at += count;
    }
  }
}

AllToAllAttention::Whole AllToAllAttention::split(const Tensor& whole) const {
  const std::int64_t n = spec().heads / group_.size(), k = spec().query_groups / group_.size();
  return {.q = whole.slice(2, 0, n), .k = whole.slice(2, n, k), .v = whole.slice(2, n + k, k)};
}

TensorList AllToAllAttention::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                                      Stash& stash) const {
  const Tensor parts[] = {by_sequence(mb, inputs[0]), by_sequence(mb, inputs[1]), by_sequence(mb, inputs[2])};
  const Whole whole = split(to_whole_sequence(ctx, parts, "q, k and v"));
  save_inputs(stash, whole.q, whole.k, whole.v);
  return attend(ctx, mb, stash);
}

// kOut and kLse are those of this rank's heads.
Tensor AllToAllAttention::forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Tensor& q = stash.at(kQ, "q");
  const Tensor mine = ctx.empty(q.shape, q.dtype, "attention output of a part of the heads");
  const Tensor lse = ctx.empty({q.size(0), q.size(2), q.size(1)}, DType::kFp32, "attention statistics");
  launch(ctx,
         AttentionForward{
             .q = q, .k = stash.at(kK, "k"), .v = stash.at(kV, "v"), .out = mine, .lse = lse, .scale = spec().scale()});
  stash.refill(kOut, mine);
  stash.refill(kLse, lse);
  const Tensor out =
      ctx.empty({q.size(0) * q.size(1) / group_.size(), spec().heads * spec().head_dim}, q.dtype, "attention output");
  const Tensor parts[] = {by_head(mb, out)};
  to_whole_heads(ctx, mine, parts, "attention output");
  return out;
}

TensorList AllToAllAttention::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& gradients,
                                            Stash& stash) const {
  const Tensor d_parts[] = {by_head(mb, gradients[0])};
  const Tensor d_out = to_whole_sequence(ctx, d_parts, "attention output gradient");
  const Tensor& q = stash.at(kQ, "q");
  const std::int64_t heads = (spec().heads + 2 * spec().query_groups) / group_.size();
  const Tensor d_whole = ctx.empty({q.size(0), q.size(1), heads, q.size(3)}, q.dtype, "qkv gradient of whole sequence");
  const Whole d = split(d_whole);
  const Tensor& lse = stash.at(kLse, "attention statistics");
  launch_attention_backward(ctx, {.q = q,
                                  .k = stash.at(kK, "k"),
                                  .v = stash.at(kV, "v"),
                                  .out = stash.at(kOut, "attention output"),
                                  .d_out = d_out,
                                  .lse = lse,
                                  .delta = ctx.empty(lse.shape, DType::kFp32, "attention delta"),
                                  .dq = d.q,
                                  .dk = d.k,
                                  .dv = d.v,
                                  .workspace = {},
                                  .scale = spec().scale()});
  const Tensor parts[] = {by_sequence(mb, gradients[1]), by_sequence(mb, gradients[2]), by_sequence(mb, gradients[3])};
  to_whole_heads(ctx, d_whole, parts, "gradients of q, k and v");
  return {gradients[1], gradients[2], gradients[3]};
}

}  // namespace megalith

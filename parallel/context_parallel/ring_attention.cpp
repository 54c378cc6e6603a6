#include "parallel/context_parallel/ring_attention.h"

#include "core/ops/attention.h"
#include "core/ops/attention_merge.h"
#include "core/ops/elementwise.h"

namespace megalith {

struct RingAttention::Block {
  int owner = 0;                              // whose keys
  std::int64_t first_query = 0, queries = 0;  // rows of this rank's S
  std::int64_t keys = 0;                      // of the owner's S, from its first
  bool causal = false;
};

struct RingAttention::Saved {
  Tensor q, out, lse, d_out;
};

namespace {

// One half of keys and values, [2, B, S, K, D], as [B, S, K, D].
Tensor half_of(const Tensor& both, int which) {
  return both.slice(0, which, 1).view({both.size(1), both.size(2), both.size(3), both.size(4)});
}

Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  return first == 0 && count == x.size(1) ? x : x.slice(1, first, count);
}

// [B, N, S] of some rows, contiguous as attention wants it.
Tensor statistics_of(const Context& ctx, const Tensor& lse, std::int64_t first, std::int64_t count) {
  if (count == lse.size(2)) return lse;
  const Tensor part = ctx.empty({lse.size(0), lse.size(1), count}, DType::kFp32, "attention statistics of a block");
  launch(ctx.compute, Copy{.src = lse.slice(2, first, count), .dst = part});
  return part;
}

}  // namespace

// Keys and values of one rank after the other, [2, B, S, K, D].
class RingAttention::Keys {
 public:
  Keys(const Context& ctx, CommLane& lane, Transport transport, const Tensor& k, const Tensor& v)
      : ctx_(ctx), lane_(lane), transport_(transport) {
    current_ = ctx.empty({2, k.size(0), k.size(1), k.size(2), k.size(3)}, k.dtype, "keys and values to send");
    launch(ctx.compute, Copy{.src = k, .dst = half_of(current_, 0)});
    launch(ctx.compute, Copy{.src = v, .dst = half_of(current_, 1)});
    if (transport == Transport::kRing) {
      shift();
      return;
    }
    all_ = ctx.empty({lane.group.size(), current_.numel()}, k.dtype, "keys and values of all ranks");
    lane_.start(ctx.compute, AllGather{.group = lane_.group, .in = current_, .out = all_, .label = "keys and values"});
  }

  // Of the step's owner; `step` from 1 on, ascending.
  Tensor at(int step, int owner) {
    if (transport_ == Transport::kGather) {
      if (step == 1) lane_.wait(ctx_.compute);
      return all_.slice(0, owner, 1).view(current_.shape);
    }
    lane_.wait(ctx_.compute);
    current_ = next_;
    if (step + 1 < lane_.group.size()) shift();
    return current_;
  }

  const Tensor& own() const { return current_; }  // before the first at()

 private:
  void shift() {
    next_ = ctx_.empty(current_.shape, current_.dtype, "keys and values received");
    lane_.start(ctx_.compute, Shift{.group = lane_.group, .in = current_, .out = next_, .label = "keys and values"});
  }

  const Context& ctx_;
  CommLane& lane_;
  Transport transport_;
  Tensor current_, next_, all_;
};

// Sums of the gradients of keys and values, fp32 [2, B, S, K, D], on their way to their owners.
class RingAttention::KeyGradients {
 public:
  KeyGradients(const Context& ctx, CommLane& lane, Transport transport, const Shape& shape)
      : ctx_(ctx), lane_(lane), transport_(transport), shape_(shape) {
    if (transport == Transport::kRing) return;
    all_ = ctx.empty({lane.group.size(), shape.numel()}, DType::kFp32, "key gradients of all ranks");
    launch(ctx.compute, Fill{.x = all_, .value = 0});
  }

  // Those of the step's owner, of its first keys.
  void add(int step, int owner, const Tensor& part) {
    Tensor sum;
    if (transport_ == Transport::kGather) {
      sum = all_.slice(0, owner, 1).view(shape_);
    } else if (step == 0) {
      sum = ctx_.empty(shape_, DType::kFp32, "key gradients");
    } else {
      lane_.wait(ctx_.compute);
      sum = received_;
    }
    for (const int which : {0, 1}) {
      launch(ctx_.compute, CastRows{.x = half_of(part, which),
                                    .y = rows_of(half_of(sum, which), 0, part.size(2)),
                                    .accumulate = step > 0 || transport_ == Transport::kGather});
    }
    if (transport_ == Transport::kGather) return;
    received_ = ctx_.empty(shape_, DType::kFp32, "key gradients received");
    lane_.start(ctx_.compute, Shift{.group = lane_.group, .in = sum, .out = received_, .label = kLabel});
  }

  // After the last add().
  Tensor own() {
    if (transport_ == Transport::kGather) {
      received_ = ctx_.empty(shape_, DType::kFp32, "key gradients received");
      lane_.start(ctx_.compute, ReduceScatter{.group = lane_.group, .in = all_, .out = received_, .label = kLabel});
    }
    lane_.wait(ctx_.compute);
    return received_;
  }

 private:
  static constexpr const char* kLabel = "gradients of keys and values";

  const Context& ctx_;
  CommLane& lane_;
  Transport transport_;
  Shape shape_;
  Tensor received_, all_;
};

RingAttention::Block RingAttention::block(int step, std::int64_t tokens) const {
  const int rank = group_.rank(), owner = (rank - step + group_.size()) % group_.size();
  if (step == 0) return {.owner = owner, .queries = tokens, .keys = tokens, .causal = true};
  if (owner < rank) return {.owner = owner, .queries = tokens, .keys = tokens / 2};
  return {.owner = owner, .first_query = tokens / 2, .queries = tokens / 2, .keys = tokens};
}

TensorList RingAttention::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs,
                                  Stash& stash) const {
  save_inputs(stash, inputs[0], inputs[1], inputs[2]);
  return attend(ctx, mb, stash);
}

Tensor RingAttention::forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Tensor q = by_sequence(mb, stash.at(kQ, "q")), k = by_sequence(mb, stash.at(kK, "k")),
               v = by_sequence(mb, stash.at(kV, "v"));
  const std::int64_t tokens = q.size(1);
  const Shape rows{q.size(0) * tokens, spec().heads * spec().head_dim};
  const Tensor out = ctx.empty(rows, q.dtype, "attention output");
  const Tensor lse = ctx.empty({q.size(0), spec().heads, tokens}, DType::kFp32, "attention statistics");
  Keys keys(ctx, group_.keys, transport_, k, v);
  launch(ctx, AttentionForward{.q = q, .k = k, .v = v, .out = by_head(mb, out), .lse = lse, .scale = spec().scale()});
  Tensor sum = out;  // fp32
  if (q.dtype != DType::kFp32) {
    sum = ctx.empty(rows, DType::kFp32, "attention sum");
    launch(ctx.compute, CastRows{.x = out, .y = sum});
  }
  for (int step = 1; step < group_.size(); ++step) {
    const Block of_step = block(step, tokens);
    add_block(ctx, of_step, q, keys.at(step, of_step.owner), by_head(mb, sum), lse);
  }
  if (q.dtype != DType::kFp32) launch(ctx.compute, CastRows{.x = sum, .y = out});
  stash.refill(kOut, out);
  stash.refill(kLse, lse);
  return out;
}

void RingAttention::add_block(const Context& ctx, const Block& block, const Tensor& q, const Tensor& keys,
                              const Tensor& sum, const Tensor& lse) const {
  const Tensor queries = rows_of(q, block.first_query, block.queries);
  const Tensor part = ctx.empty(queries.shape, q.dtype, "attention output of a block");
  const Tensor part_lse =
      ctx.empty({q.size(0), q.size(2), block.queries}, DType::kFp32, "attention statistics of a block");
  launch(ctx, AttentionForward{.q = queries,
                               .k = rows_of(half_of(keys, 0), 0, block.keys),
                               .v = rows_of(half_of(keys, 1), 0, block.keys),
                               .out = part,
                               .lse = part_lse,
                               .scale = spec().scale(),
                               .causal = false});
  launch(ctx.compute, AttentionMerge{.out = rows_of(sum, block.first_query, block.queries),
                                     .lse = lse.slice(2, block.first_query, block.queries),
                                     .part = part,
                                     .part_lse = part_lse});
}

// Those of the block's keys and values, [2, B, its keys, K, D]; those of its queries are added to dq_sum.
Tensor RingAttention::block_gradient(const Context& ctx, const Block& block, const Saved& saved, const Tensor& keys,
                                     const Tensor& dq_sum) const {
  const auto queries = [&block](const Tensor& x) { return rows_of(x, block.first_query, block.queries); };
  const Tensor q = queries(saved.q);
  const Tensor dkv =
      ctx.empty({2, q.size(0), block.keys, keys.size(3), keys.size(4)}, q.dtype, "key gradients of a block");
  const Tensor lse = statistics_of(ctx, saved.lse, block.first_query, block.queries);
  const Tensor dq = ctx.empty(q.shape, q.dtype, "query gradient of a block");
  launch_attention_backward(ctx, {.q = q,
                                  .k = rows_of(half_of(keys, 0), 0, block.keys),
                                  .v = rows_of(half_of(keys, 1), 0, block.keys),
                                  .out = queries(saved.out),
                                  .d_out = queries(saved.d_out),
                                  .lse = lse,
                                  .delta = ctx.empty(lse.shape, DType::kFp32, "attention delta"),
                                  .dq = dq,
                                  .dk = half_of(dkv, 0),
                                  .dv = half_of(dkv, 1),
                                  .workspace = {},
                                  .scale = spec().scale(),
                                  .causal = block.causal});
  launch(ctx.compute, CastRows{.x = dq, .y = queries(dq_sum), .accumulate = !block.causal});
  return dkv;
}

TensorList RingAttention::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& gradients,
                                        Stash& stash) const {
  const Tensor dq = by_sequence(mb, gradients[1]);
  const Tensor dkv[] = {by_sequence(mb, gradients[2]), by_sequence(mb, gradients[3])};
  const Saved saved{.q = by_sequence(mb, stash.at(kQ, "q")),
                    .out = by_head(mb, stash.at(kOut, "attention output")),
                    .lse = stash.at(kLse, "attention statistics"),
                    .d_out = by_head(mb, gradients[0])};
  const std::int64_t tokens = dq.size(1);
  const bool narrow = dq.dtype != DType::kFp32;
  const Tensor dq_sum = narrow ? ctx.empty(dq.shape, DType::kFp32, "query gradient") : dq;
  Keys keys(ctx, group_.keys, transport_, by_sequence(mb, stash.at(kK, "k")), by_sequence(mb, stash.at(kV, "v")));
  KeyGradients sums(ctx, group_.gradients, transport_, keys.own().shape);
  for (int step = 0; step < group_.size(); ++step) {
    const Block of_step = block(step, tokens);
    const Tensor of_owner = step == 0 ? keys.own() : keys.at(step, of_step.owner);
    sums.add(step, of_step.owner, block_gradient(ctx, of_step, saved, of_owner, dq_sum));
  }
  if (narrow) launch(ctx.compute, CastRows{.x = dq_sum, .y = dq});
  const Tensor sum = sums.own();
  for (const int which : {0, 1}) launch(ctx.compute, CastRows{.x = half_of(sum, which), .y = dkv[which]});
  return {gradients[1], gradients[2], gradients[3]};
}

}  // namespace megalith

#include "parallel/context_parallel/context_attention.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "core/ops/attention/attention.h"
#include "core/ops/elementwise/elementwise.h"

namespace megalith {

struct RingAttention::Block {
  int owner = 0;                              // owner of the keys
  std::int64_t first_query = 0, queries = 0;  // rows of this rank's S
  std::int64_t keys = 0;                      // first keys of the owner's S
  bool causal = false;

  // Form of the block on the ranks that compute another one in this step.
  Block other_form() const {
    if (causal) return *this;
    return {.owner = owner, .first_query = queries > keys ? keys : 0, .queries = keys, .keys = queries};
  }
};

namespace {

// Keys or values of [2, B, S, K, D], as [B, S, K, D].
Tensor half_of(const Tensor& both, int which) {
  return both.slice(0, which, 1).view({both.size(1), both.size(2), both.size(3), both.size(4)});
}

Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  return first == 0 && count == x.size(1) ? x : x.slice(1, first, count);
}

// Allocator of tensors from a range, with one shared workspace; without a range it only counts bytes.
class Pieces {
 public:
  Pieces() = default;
  Pieces(void* base, const Tensor& workspace) : base_(static_cast<std::byte*>(base)), workspace_(workspace) {}

  Tensor take(const Shape& shape, DType dtype) {
    const Tensor piece(base_ == nullptr ? nullptr : base_ + bytes_, dtype, shape);
    bytes_ += (static_cast<std::int64_t>(piece.bytes()) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  template <HasWorkspace Op>
  Op with_workspace(Op op, DeviceType device) {
    workspace_bytes_ = static_cast<std::int64_t>(workspace_bytes(op, device));
    op.workspace = workspace_;
    return op;
  }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t max_workspace() const { return workspace_bytes_; }

 private:
  static constexpr std::int64_t kAlignment = 256;
  std::byte* base_ = nullptr;
  Tensor workspace_;
  std::int64_t bytes_ = 0, workspace_bytes_ = 0;
};

// Result of `cut(block, pieces)`, in memory that suits both forms of the block. Ranks that read each other's memory
// must allocate equally.
template <class Block, class Cut>
auto in_room(const Context& ctx, const Block& block, const Cut& cut) {
  Pieces own, other;
  cut(block, own);
  cut(block.other_form(), other);
  const Tensor room = ctx.empty({std::max(own.bytes(), other.bytes())}, DType::kUint8, "attention of a block");
  Tensor workspace;
  if (const std::int64_t most = std::max(own.max_workspace(), other.max_workspace()); most > 0)
    workspace = ctx.empty({most}, DType::kUint8, "workspace");
  Pieces pieces(room.data, workspace);
  return cut(block, pieces);
}

}  // namespace

// Keys and values of one rank at a time, [2, B, S, K, D].
class RingAttention::Keys {
 public:
  Keys(const Context& ctx, CommLane& lane, bool gathers, const Heads& own) : ctx_(ctx), lane_(lane), gathers_(gathers) {
    const Tensor& k = own.k;
    current_ = ctx.empty({2, k.size(0), k.size(1), k.size(2), k.size(3)}, k.dtype, "keys and values to send");
    launch(ctx.compute, Copy{.src = k, .dst = half_of(current_, 0)});
    launch(ctx.compute, Copy{.src = own.v, .dst = half_of(current_, 1)});
    if (!gathers) {
      shift();
      return;
    }
    all_ = ctx.empty({lane.group.size(), current_.numel()}, k.dtype, "keys and values of all ranks");
    lane_.start(ctx.compute, AllGather{.group = lane_.group, .in = current_, .out = all_, .label = "keys and values"});
  }

  // Returns those of the step's owner; `step` ascends from 1.
  Tensor at(int step, int owner) {
    if (gathers_) {
      if (step == 1) lane_.wait(ctx_.compute);
      return all_.slice(0, owner, 1).view(current_.shape);
    }
    lane_.wait(ctx_.compute);
    current_ = next_;
    if (step + 1 < lane_.group.size()) shift();
    return current_;
  }

  const Tensor& own() const { return current_; }  // valid before the first at()

 private:
  void shift() {
    next_ = ctx_.empty(current_.shape, current_.dtype, "keys and values received");
    lane_.start(ctx_.compute, Shift{.group = lane_.group, .in = current_, .out = next_, .label = "keys and values"});
  }

  const Context& ctx_;
  CommLane& lane_;
  bool gathers_;
  Tensor current_, next_, all_;
};

// Sums of the gradients of keys and values, fp32 [2, B, S, K, D], in transfer to their owners.
class RingAttention::KeyGradients {
 public:
  KeyGradients(const Context& ctx, CommLane& lane, bool gathers, const Shape& shape)
      : ctx_(ctx), lane_(lane), gathers_(gathers), shape_(shape) {
    if (!gathers) return;
    all_ = ctx.empty({lane.group.size(), shape.numel()}, DType::kFp32, "key gradients of all ranks");
    launch(ctx.compute, Fill{.x = all_, .value = 0});
  }

  // Adds gradients of the owner's first keys: [B, keys, K, D] of keys and of values.
  void add(int step, int owner, const std::array<Tensor, 2>& parts) {
    Tensor sum;
    if (gathers_) {
      sum = all_.slice(0, owner, 1).view(shape_);
    } else if (step == 0) {
      sum = ctx_.empty(shape_, DType::kFp32, "key gradients");
    } else {
      lane_.wait(ctx_.compute);
      sum = received_;
    }
    for (const int which : {0, 1}) {
      const Tensor& part = parts[static_cast<std::size_t>(which)];
      launch(
          ctx_.compute,
          CastRows{.x = part, .y = rows_of(half_of(sum, which), 0, part.size(1)), .accumulate = step > 0 || gathers_});
    }
    if (gathers_) return;
    received_ = ctx_.empty(shape_, DType::kFp32, "key gradients received");
    lane_.start(ctx_.compute, Shift{.group = lane_.group, .in = sum, .out = received_, .label = kLabel});
  }

  // Returns this rank's sums, after the last add().
  Tensor own() {
    if (gathers_) {
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
  bool gathers_;
  Shape shape_;
  Tensor received_, all_;
};

// Heads of the block's queries, keys and values.
Heads RingAttention::heads_of(const Tensor& queries, const Tensor& keys, const Block& block) {
  return {.q = queries, .k = rows_of(half_of(keys, 0), 0, block.keys), .v = rows_of(half_of(keys, 1), 0, block.keys)};
}

RingAttention::Block RingAttention::block(int step, std::int64_t tokens) const {
  const int rank = group_.rank(), owner = (rank - step + group_.size()) % group_.size();
  if (step == 0) return {.owner = owner, .queries = tokens, .keys = tokens, .causal = true};
  if (owner < rank) return {.owner = owner, .queries = tokens, .keys = tokens / 2};
  return {.owner = owner, .first_query = tokens / 2, .queries = tokens / 2, .keys = tokens};
}

Tensor RingAttention::forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  const Heads own = by_sequence(mb, saved(stash));
  const Tensor& q = own.q;
  const std::int64_t tokens = q.size(1);
  require(spec().window == 0 || spec().window >= tokens * group_.size(), "RingAttention: a window that queries reach");
  const Shape rows{q.size(0) * tokens, spec().heads * spec().head_dim};
  const Tensor out = ctx.empty(rows, q.dtype, "attention output");
  Keys keys(ctx, group_.keys, gathers_, own);
  const Tensor lse = attend(ctx, mb, own, by_head(mb, out));
  Tensor sum = out;  // in fp32
  if (q.dtype != DType::kFp32) {
    sum = ctx.empty(rows, DType::kFp32, "attention sum");
    launch(ctx.compute, CastRows{.x = out, .y = sum});
  }
  for (int step = 1; step < group_.size(); ++step) {
    const Block of_step = block(step, tokens);
    const Tensor of_owner = keys.at(step, of_step.owner);
    if (mb.documents)
      add_documents(ctx, mb.documents, step, q, of_owner, by_head(mb, sum), lse);
    else
      add_block(ctx, of_step, q, of_owner, by_head(mb, sum), lse);
  }
  if (q.dtype != DType::kFp32) launch(ctx.compute, CastRows{.x = sum, .y = out});
  stash.refill(kOut, out);
  stash.refill(kLse, lse);
  return out;
}

void RingAttention::add_block(const Context& ctx, const Block& block, const Tensor& q, const Tensor& keys,
                              const Tensor& sum, const Tensor& lse) const {
  const auto op = in_room(ctx, block, [&](const Block& of, Pieces& pieces) {
    const Heads heads = heads_of(rows_of(q, of.first_query, of.queries), keys, of);
    return pieces.with_workspace(AttentionForward{.q = heads.q,
                                                  .k = heads.k,
                                                  .v = heads.v,
                                                  .out = pieces.take(heads.q.shape, q.dtype),
                                                  .lse = pieces.take({q.size(0), q.size(2), of.queries}, DType::kFp32),
                                                  .scale = spec().scale(),
                                                  .causal = of.causal,
                                                  .workspace = {}},
                                 ctx.backend());
  });
  launch(ctx.compute, op);
  launch(ctx.compute, AttentionMerge{.out = rows_of(sum, block.first_query, block.queries),
                                     .lse = lse.slice(2, block.first_query, block.queries),
                                     .part = op.out,
                                     .part_lse = op.lse});
}

void RingAttention::add_documents(const Context& ctx, const Documents& documents, int step, const Tensor& q,
                                  const Tensor& keys, const Tensor& sum, const Tensor& lse) const {
  const Tensor queries = one_sequence(q);
  const Tensor part = ctx.empty(queries.shape, q.dtype, "attention of shared documents");
  const Tensor part_lse = ctx.empty(lse.shape, DType::kFp32, "attention statistics");
  launch(ctx.compute, Fill{.x = part, .value = 0});
  launch(ctx.compute, Fill{.x = part_lse, .value = -std::numeric_limits<float>::infinity()});
  launch(ctx, AttentionForward{.q = queries,
                               .k = one_sequence(half_of(keys, 0)),
                               .v = one_sequence(half_of(keys, 1)),
                               .out = part,
                               .lse = part_lse,
                               .scale = spec().scale(),
                               .causal = false,
                               .query_documents = documents.shared_queries(step),
                               .key_documents = documents.shared_keys(step),
                               .max_length = documents.max_length,
                               .pairs = documents.pairs});
  launch(ctx.compute, AttentionMerge{.out = one_sequence(sum), .lse = lse, .part = part, .part_lse = part_lse});
}

// As block_gradients(), of the documents that both ranks have. Step 0: of this rank's own keys.
std::array<Tensor, 2> RingAttention::document_gradients(const Context& ctx, const Documents& documents, int step,
                                                        const Tensor& q, const Done& done, const Tensor& keys,
                                                        const Tensor& dq_sum) const {
  const Tensor queries = one_sequence(q), k = one_sequence(half_of(keys, 0)), v = one_sequence(half_of(keys, 1));
  const Tensor dq = ctx.empty(queries.shape, q.dtype, "query gradient of documents");
  const Tensor dk = ctx.empty(keys.shape, q.dtype, "key gradients of documents");
  const bool is_own = step == 0;
  for (const Tensor& x : {dq, dk}) {
    if (!is_own) launch(ctx.compute, Fill{.x = x, .value = 0});
  }
  launch(ctx,
         AttentionBackward{
             .q = queries,
             .k = k,
             .v = v,
             .out = one_sequence(done.out),
             .d_out = one_sequence(done.d_out),
             .lse = done.lse,
             .delta = ctx.empty(done.lse.shape, DType::kFp32, "attention delta"),
             .dq = dq,
             .dk = one_sequence(half_of(dk, 0)),
             .dv = one_sequence(half_of(dk, 1)),
             .workspace = {},
             .scale = spec().scale(),
             .deterministic = ctx.deterministic,
             .causal = is_own,
             .query_documents = is_own ? static_cast<const DocumentRows&>(documents) : documents.shared_queries(step),
             .key_documents = is_own ? static_cast<const DocumentRows&>(documents) : documents.shared_keys(step),
             .max_length = documents.max_length,
             .pairs = documents.pairs});
  launch(ctx.compute, CastRows{.x = dq, .y = one_sequence(dq_sum), .accumulate = !is_own});
  return {half_of(dk, 0), half_of(dk, 1)};
}

// Returns the gradients of the block's keys and values, and adds those of its queries to dq_sum.
std::array<Tensor, 2> RingAttention::block_gradients(const Context& ctx, const Block& block, const Tensor& q,
                                                     const Done& done, const Tensor& keys, const Tensor& dq_sum) const {
  const auto op = in_room(ctx, block, [&](const Block& of, Pieces& pieces) {
    const auto queries = [&of](const Tensor& x) { return rows_of(x, of.first_query, of.queries); };
    const Heads heads = heads_of(queries(q), keys, of);
    const Shape statistics{q.size(0), q.size(2), of.queries};
    return pieces.with_workspace(AttentionBackward{.q = heads.q,
                                                   .k = heads.k,
                                                   .v = heads.v,
                                                   .out = queries(done.out),
                                                   .d_out = queries(done.d_out),
                                                   .lse = of.causal ? done.lse : pieces.take(statistics, DType::kFp32),
                                                   .delta = pieces.take(statistics, DType::kFp32),
                                                   .dq = pieces.take(heads.q.shape, q.dtype),
                                                   .dk = pieces.take(heads.k.shape, q.dtype),
                                                   .dv = pieces.take(heads.v.shape, q.dtype),
                                                   .workspace = {},
                                                   .scale = spec().scale(),
                                                   .deterministic = ctx.deterministic,
                                                   .causal = of.causal},
                                 ctx.backend());
  });
  // Attention requires contiguous memory. The copy is also made for a complete range, so that ranks act equally.
  if (!block.causal)
    launch(ctx.compute, Copy{.src = done.lse.slice(2, block.first_query, block.queries), .dst = op.lse});
  launch(ctx.compute, op);
  launch(ctx.compute,
         CastRows{.x = op.dq, .y = rows_of(dq_sum, block.first_query, block.queries), .accumulate = !block.causal});
  return {op.dk, op.dv};
}

void RingAttention::backward_data(const Context& ctx, const Microbatch& mb, const Tensor& d_out, const Heads& gradients,
                                  Stash& stash) const {
  const auto [dq, dk, dv] = by_sequence(mb, gradients);
  const Heads own = by_sequence(mb, saved(stash));
  const Done done{.out = by_head(mb, saved_out(stash)), .d_out = by_head(mb, d_out), .lse = saved_lse(stash)};
  const std::int64_t tokens = dq.size(1);
  const bool narrow = dq.dtype != DType::kFp32;
  const Tensor dq_sum = narrow ? ctx.empty(dq.shape, DType::kFp32, "query gradient") : dq;
  Keys keys(ctx, group_.keys, gathers_, own);
  KeyGradients sums(ctx, group_.gradients, gathers_, keys.own().shape);
  for (int step = 0; step < group_.size(); ++step) {
    const Block of_step = block(step, tokens);
    const Tensor of_owner = step == 0 ? keys.own() : keys.at(step, of_step.owner);
    sums.add(step, of_step.owner,
             mb.documents ? document_gradients(ctx, mb.documents, step, own.q, done, of_owner, dq_sum)
                          : block_gradients(ctx, of_step, own.q, done, of_owner, dq_sum));
  }
  if (narrow) launch(ctx.compute, CastRows{.x = dq_sum, .y = dq});
  const Tensor sum = sums.own();
  launch(ctx.compute, CastRows{.x = half_of(sum, 0), .y = dk});
  launch(ctx.compute, CastRows{.x = half_of(sum, 1), .y = dv});
}

}  // namespace megalith

// Attention between the projections: softmax(q k^T) v of a causal sequence. An interface, so that context parallelism
// can exchange keys among ranks. T tokens = B * S, N heads, K key/value heads, D head dim.
#pragma once

#include "core/layers/context.h"
#include "core/layers/microbatch.h"
#include "core/layers/stash.h"

namespace megalith {

struct Heads {
  Tensor q, k, v;  // [T, N, D], [T, K, D], [T, K, D]; by sequence: [B, S, N, D], ...
};

class CoreAttention {
 public:
  // Numbers of this rank's heads. Another option of the scores, such as a sink of each head or a soft cap, would be a
  // field here and in the attention ops.
  struct Spec {
    std::int64_t heads = 0;
    std::int64_t query_groups = 0;
    std::int64_t head_dim = 0;
    std::int64_t window = 0;  // keys that a query sees up to its own; 0: all
    float scale() const;      // scale of the scores
  };
  enum Slot { kQ, kK, kV, kOut, kLse };  // a policy may drop kOut and kLse

  explicit CoreAttention(const Spec& spec) : spec_(spec) {}
  virtual ~CoreAttention() = default;
  const Spec& spec() const { return spec_; }

  // Returns [T, N D], contiguous. The stash keeps the inputs, and the outputs according to their policy.
  Tensor forward(const Context& ctx, const Microbatch& mb, const Heads& heads, Stash& stash) const;
  // Recomputes forward from the stash; fills kOut and kLse under any policy.
  virtual Tensor forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const = 0;
  // Writes `gradients`, in the shapes of the heads.
  virtual void backward_data(const Context& ctx, const Microbatch& mb, const Tensor& d_out, const Heads& gradients,
                             Stash& stash) const = 0;

 protected:
  // Returns the inputs of attention, which the stash keeps: the heads of forward, or what ranks make of them.
  virtual Heads inputs(const Context&, const Microbatch&, const Heads& heads) const { return heads; }
  static Heads saved(const Stash& stash);
  static Tensor saved_out(const Stash& stash) { return stash.at(kOut, "attention output"); }
  static Tensor saved_lse(const Stash& stash) { return stash.at(kLse, "attention statistics"); }
  // [T, N, D] -> [B, S, N, D]
  static Tensor by_sequence(const Microbatch& mb, const Tensor& heads) { return heads.split_dim(0, mb.sequences); }
  static Heads by_sequence(const Microbatch& mb, const Heads& heads);
  // [T, N D] -> [B, S, N, D]
  Tensor by_head(const Microbatch& mb, const Tensor& rows) const {
    return by_sequence(mb, rows.split_dim(1, spec_.heads));
  }
  // Attends over heads by sequence, within the microbatch's documents: writes `out`, returns the statistics, [B, N, S].
  Tensor attend(const Context& ctx, const Microbatch& mb, const Heads& heads, const Tensor& out) const;
  struct Done {
    Tensor out, d_out, lse;
  };
  // [B, S, heads, D] -> [1, B S, heads, D]: documents count rows from the microbatch's first.
  static Tensor one_sequence(const Tensor& x);
  // Writes `gradients`; deterministic if ctx.deterministic.
  void differentiate(const Context& ctx, const Microbatch& mb, const Heads& heads, const Done& done,
                     const Heads& gradients) const;

 private:
  // Returns the op's window: 0 if no query of the sequences reaches the spec's.
  std::int64_t window(const Heads& heads) const { return spec_.window < heads.q.size(1) ? spec_.window : 0; }

  Spec spec_;
};

// Attention of an unsharded sequence.
class CausalAttention : public CoreAttention {
 public:
  using CoreAttention::CoreAttention;

  Tensor forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
  void backward_data(const Context& ctx, const Microbatch& mb, const Tensor& d_out, const Heads& gradients,
                     Stash& stash) const override;
};

}  // namespace megalith

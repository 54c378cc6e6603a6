// Attention proper, between the projections: softmax(q k^T) v of a causal sequence. A part of its own, so that a
// context-parallel one, which sees the other ranks' keys, can stand in its place. T tokens = B * S, N heads, K
// key/value heads, D head dim.
#pragma once

#include "core/layers/segment.h"

namespace megalith {

class CoreAttention : public Segment {
 public:
  struct Spec {  // of this rank's heads
    std::int64_t heads = 0;
    std::int64_t query_groups = 0;
    std::int64_t head_dim = 0;
    float scale() const;  // of the scores
  };
  enum Slot { kQ, kK, kV, kOut, kLse };  // kOut and kLse are those that a policy may leave out

  explicit CoreAttention(const Spec& spec) : spec_(spec) {}

  // forward: {q [T, N, D], k [T, K, D], v [T, K, D]} -> {[T, N D]}, contiguous.
  // backward_data: {gradient of that, dq, dk, dv}, of which the last three, in the shapes of q, k and v, are written,
  // and returned.
  // What forward returns, from the inputs in its stash; fills kOut and kLse, whatever their policy.
  virtual Tensor forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const = 0;
  void backward_weight(const Context&, const Microbatch&, Stash&) const final {}

 protected:
  const Spec& spec() const { return spec_; }
  static void save_inputs(Stash& stash, const Tensor& q, const Tensor& k, const Tensor& v);
  // What forward does once its inputs are saved: of the outputs the stash keeps what its policy says.
  TensorList attend(const Context& ctx, const Microbatch& mb, Stash& stash) const;
  // [T, N, D] -> [B, S, N, D]
  static Tensor by_sequence(const Microbatch& mb, const Tensor& heads) { return heads.split_dim(0, mb.sequences); }
  // [T, N D] -> [B, S, N, D]
  Tensor by_head(const Microbatch& mb, const Tensor& rows) const {
    return by_sequence(mb, rows.split_dim(1, spec_.heads));
  }

 private:
  Spec spec_;
};

// Of the whole sequence on one rank.
class CausalAttention : public CoreAttention {
 public:
  using CoreAttention::CoreAttention;

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& gradients,
                           Stash& stash) const override;
  Tensor forward_again(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
};

// In the form that ctx.deterministic asks for.
struct AttentionBackward;
void launch_attention_backward(const Context& ctx, AttentionBackward op);

}  // namespace megalith

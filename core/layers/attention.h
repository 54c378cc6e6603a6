// The attention half of a transformer block: (hidden, residual) -> (projection output, residual + hidden).
//   r = residual + hidden;  n = norm(r);  q, k, v = linear_qkv(n);  [QK norm];  [RoPE];  o = attention(q, k, v);
//   out = dropout(linear_proj(o))
// Causal self-attention with grouped queries (Ainslie et al. 2023, arXiv:2305.13245). QK norm: Dehghani et al. 2023,
// arXiv:2302.05442; RoPE: Su et al. 2021, arXiv:2104.09864. T tokens = B * S, H hidden, N heads, K query groups (kv
// heads), D head dim.
#pragma once

#include <optional>

#include "core/layers/core_attention.h"
#include "core/layers/linear.h"
#include "core/layers/norm.h"
#include "core/ops/attention/rope_frequency.h"

namespace megalith {

struct DropoutSpec {
  float p = 0;
  std::int32_t layer = 0;  // global number; -1 is the embedding
  std::int32_t site = 0;
  int row_part = 0;  // index of x among the microbatch's equal parts of rows
};

class Attention : public Segment {
 public:
  struct Spec {
    float rotary_base = 10000.0f;
    RopeScaling rotary_scaling;
    std::int64_t rotary_dim = 0;  // 0: no RoPE
    DropoutSpec dropout;
    int layer = 0;  // global number; index in the KV cache
  };
  // linear_qkv: [T, H] -> [T, (N + 2K) D], weight rows [q; k; v]; linear_proj: [T, N D] -> [T, H].
  struct Parts {
    Norm norm;
    std::unique_ptr<Layer> qkv;
    std::unique_ptr<Layer> proj;
    std::unique_ptr<CoreAttention> core;
    std::optional<Norm> q_norm, k_norm;
  };

  Attention(const Spec& spec, Parts parts) : spec_(spec), parts_(std::move(parts)) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Child { kNorm, kQkvLinear, kProj, kQNorm, kKNorm, kCore };

  Heads split(const Tensor& qkv) const;  // views of the fused projection
  const CoreAttention::Spec& core() const { return parts_.core->spec(); }
  Tensor by_sequence(const Microbatch& mb, const Tensor& heads) const { return heads.split_dim(0, mb.sequences); }
  void rotate(const Context& ctx, const Microbatch& mb, const Tensor& heads, bool backward) const;
  Tensor attend_cached(const Context& ctx, const Microbatch& mb, const Heads& heads) const;
  Tensor decode(const Context& ctx, const Microbatch& mb, const Heads& heads) const;  // one token per sequence

  Spec spec_;
  Parts parts_;
};

// Returns dropout(x) in train mode, never in place; otherwise x itself.
Tensor apply_dropout(const Context& ctx, const Microbatch& mb, const DropoutSpec& spec, const Tensor& x);

}  // namespace megalith

// (hidden, residual) -> what experts need (moe/routed.h):
//   r = residual + hidden;  n = norm(r);  logits = n W^T in fp32;  choices and their weights;  the order of the rows
// Shazeer et al. 2017, arXiv:1701.06538; forms and losses: core/ops/router.h. Losses are summed in the backward pass,
// where their gradients are, so that a recomputed forward counts them once. A bf16 model's gradient of the logits is
// rounded to bf16 for its two products.
// T: tokens of this rank, H: hidden size, E: experts, K: choices a token
#pragma once

#include <functional>

#include "core/layers/norm.h"
#include "core/ops/router.h"

namespace megalith {

// Adds up counts, int32, over the ranks that share the sequences of a microbatch.
using SumCounts = std::function<void(const Context& ctx, const Tensor& counts)>;

class Router : public Segment {
 public:
  struct Spec {
    std::string name;  // logical names' prefix: "decoder.layers.3.mlp.router."
    std::int64_t hidden = 0;
    std::int64_t experts = 0;
    std::int64_t choices = 0;
    RouterScore score = RouterScore::kSoftmaxOfChosen;
    float scaling_factor = 1;
    std::int64_t num_groups = 1;
    std::int64_t group_topk = 1;
    float init_std = 0;
    // The losses' coefficients, as Megatron's flags have them.
    float aux_coeff = 0, z_coeff = 0;
    bool aux_per_sequence = false;
    std::int64_t expert_layer = 0;  // number among the layers of experts: its place in a microbatch's sums and counts
    bool expert_bias = false;    // for the choice, with kSigmoid; whom counts of rows update (core/ops/expert_bias.h)
    bool random_logits = false;  // in place of its own, as --moe-router-force-load-balancing has them
    TensorSplit split = {};
    int sharers = 1;            // ranks that share the sequences of a microbatch: of tp and cp together
    SumCounts sum_counts = {};  // over them; needed where there are several, with an aux_coeff
  };

  Router(ParameterStore& store, const Spec& spec, const Norm& norm);

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kNormed, kLogits, kChoice, kWeight, kPositions, kExpertOffsets, kLogitsGradient };
  enum Child { kNorm };
  // Consecutive rows of this rank, whose balance a loss is about.
  struct Piece {
    std::int64_t first = 0, count = 0;
    Tensor offsets;       // as ExpertOffsets has them, summed over the sharers
    std::int64_t tokens;  // N: of all sharers
  };

  Tensor make_logits(const Context& ctx, const Tensor& normed) const;
  std::vector<Piece> pieces(const Context& ctx, const Microbatch& mb, Stash& stash) const;
  Tensor backward_router(const Context& ctx, const Microbatch& mb, const Tensor& d_weight, Stash& stash) const;
  bool has_losses() const { return spec_.aux_coeff != 0 || spec_.z_coeff != 0; }

  Spec spec_;
  Norm norm_;
  Parameter& weight_;                      // [E, H]
  const ParameterBuffer* bias_ = nullptr;  // [E]
};

}  // namespace megalith

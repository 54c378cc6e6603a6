// Router: maps (hidden, residual) to the input of the experts or of the dispatch (moe/routed.h).
//   r = residual + hidden;  n = norm(r);  logits = n W^T in fp32 or fp64;  then choices, weights and the order of rows
// Shazeer et al. 2017, arXiv:1701.06538; formulas: moe/ops/router.h. A bf16 model rounds the gradient of the logits to
// bf16 for its two GEMMs. Choices beyond the capacity get no row, and the gradients of their weights are 0. The token's
// other weights do not change. Losses count all choices; the expert bias counts rows. Generation drops no choice. T:
// tokens of this rank, H: hidden size, E: experts, K: choices of a token.
#pragma once

#include "core/layers/norm.h"
#include "moe/dispatcher.h"
#include "moe/routed.h"
#include "moe/routing_losses.h"

namespace megalith {

class Router : public Segment {
 public:
  struct Spec {
    std::string name;  // prefix of logical names: "decoder.layers.3.mlp.router."
    std::int64_t hidden = 0;
    std::int64_t experts = 0;
    std::int64_t choices = 0;
    DType dtype = DType::kFp32;  // of logits, and of the arithmetic of scores: kFp32 or kFp64
    RouterScore score = RouterScore::kSoftmaxOfChosen;
    float scaling_factor = 1;
    std::int64_t num_groups = 1;
    std::int64_t group_topk = 1;
    float init_std = 0;
    RoutingLosses::Spec losses = {};
    double capacity_factor = 0;     // maximum rows of an expert over the mean, on this rank; 0: unlimited
    bool drops_last = false;        // drop the last choices instead of those with the lowest weight
    std::int64_t expert_layer = 0;  // index among the layers of experts, in the microbatch's sums and counts
    bool expert_bias = false;       // selection bias for kSigmoid, updated from row counts (moe/ops/expert_bias.h)
    bool random_logits = false;     // replace the logits, for --moe-router-force-load-balancing
    TensorSplit split = {};
    Dispatcher* dispatcher = nullptr;  // null: each rank holds all experts
    std::int64_t combine_groups = 1;   // a multiple of Dispatcher::expert_groups()
  };

  Router(ParameterStore& store, const Spec& spec, const Norm& norm);

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot {
    kNormed,
    kLogits,
    kChoice,
    kWeight,
    kSent,  // with a dispatcher: choices with a row
    kExpertOffsets,
    kChosenOffsets,
    kLogitsGradient
  };
  enum Child { kNorm };
  // Position of each choice's row (moe/routed.h).
  struct Routes {
    Tensor offsets, token, position, row_weight;
  };

  Tensor make_logits(const Context& ctx, const Microbatch& mb, const Tensor& normed) const;
  Tensor positions_of(const Microbatch& mb, std::int64_t rows) const;
  Routes routes_of(const Context& ctx, const Tensor& choice, const Tensor& weight) const;
  // Choices that get a row; returns `choice` itself if all do.
  Tensor kept_choices(const Context& ctx, const Microbatch& mb, const Tensor& choice, const Routes& all) const;
  Tensor backward_router(const Context& ctx, const Microbatch& mb, const Tensor& d_weight, Stash& stash) const;
  // Gradients of the choices' weights, and of the norm's output through the experts' rows.
  Tensor weight_gradient(const Context& ctx, const Tensor& rows_weight, const Dispatched& at, Stash& stash) const;
  Tensor normed_gradient(const Context& ctx, const Tensor& rows, const Dispatched& at, std::int64_t tokens) const;

  Spec spec_;
  RoutingLosses losses_;
  Norm norm_;
  Parameter& weight_;                      // [E, H]
  const ParameterBuffer* bias_ = nullptr;  // [E]
};

}  // namespace megalith

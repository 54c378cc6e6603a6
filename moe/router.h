// (hidden, residual) -> what experts need, or the dispatch to other ranks' experts (moe/routed.h):
//   r = residual + hidden;  n = norm(r);  logits = n W^T in fp32;  choices and their weights;  the order of the rows
// Shazeer et al. 2017, arXiv:1701.06538; forms: moe/ops/router.h. A bf16 model's gradient of the logits is rounded to
// bf16 for its two products. With a capacity a choice beyond it takes no row: the token goes without that expert, the
// weights of its others stay, and those of its weight's gradient are 0. Losses count all choices, the expert bias the
// rows. Generation drops none. T: tokens of this rank, H: hidden size, E: experts, K: choices of a token
#pragma once

#include "core/layers/norm.h"
#include "moe/dispatcher.h"
#include "moe/routed.h"
#include "moe/routing_losses.h"

namespace megalith {

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
    RoutingLosses::Spec losses = {};
    double capacity_factor = 0;     // rows of an expert over the mean, at most, on this rank; 0: any number
    bool drops_last = false;        // those that come last, not those of the lowest weight
    std::int64_t expert_layer = 0;  // number among the layers of experts: its place in a microbatch's sums and counts
    bool expert_bias = false;       // for the choice, with kSigmoid; whom counts of rows update (moe/ops/expert_bias.h)
    bool random_logits = false;     // in place of its own, as --moe-router-force-load-balancing has them
    TensorSplit split = {};
    Dispatcher* dispatcher = nullptr;  // of the ranks that share out the experts; null: each has all
    std::int64_t combine_groups = 1;   // a multiple of the groups of ranks that have all experts
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
    kSent,  // with a dispatcher: the choices that get a row
    kExpertOffsets,
    kChosenOffsets,
    kLogitsGradient
  };
  enum Child { kNorm };
  // Where each choice's row is, as in moe/routed.h.
  struct Routes {
    Tensor offsets, token, position, row_weight;
  };

  Tensor make_logits(const Context& ctx, const Microbatch& mb, const Tensor& normed) const;
  Routes routes_of(const Context& ctx, const Tensor& choice, const Tensor& weight) const;
  // The choices that get a row, of those that are routed; `choice` itself where all do.
  Tensor kept_choices(const Context& ctx, const Microbatch& mb, const Tensor& choice, const Routes& all) const;
  Tensor backward_router(const Context& ctx, const Microbatch& mb, const Tensor& d_weight, Stash& stash) const;
  // Of the weights of the choices, and of the norm's output through the experts' rows.
  Tensor weight_gradient(const Context& ctx, const Tensor& rows_weight, const Dispatched& at, Stash& stash) const;
  Tensor normed_gradient(const Context& ctx, const Tensor& rows, const Dispatched& at, std::int64_t tokens) const;

  Spec spec_;
  RoutingLosses losses_;
  Norm norm_;
  Parameter& weight_;                      // [E, H]
  const ParameterBuffer* bias_ = nullptr;  // [E]
};

}  // namespace megalith

// (hidden, residual) -> what experts need, or the dispatch to other ranks' experts (moe/routed.h):
//   r = residual + hidden;  n = norm(r);  logits = n W^T in fp32;  choices and their weights;  the order of the rows
// Shazeer et al. 2017, arXiv:1701.06538; forms and losses: moe/ops/router.h. Losses are summed in the backward pass,
// where their gradients are, so that a recomputed forward counts them once. A bf16 model's gradient of the logits is
// rounded to bf16 for its two products.
// The loss over the global batch counts as Megatron-LM's global_aux_loss does: of microbatch m the rows of microbatches
// 0 to m of the step, of all ranks that hold other tokens (tp, cp, dp). Its mean over the step's tokens is added to the
// loss whatever the layout is; Megatron-LM divides it by the replicas on top. They are counted in the backward pass,
// whose microbatches come in order in every schedule, on the device, in memory that a step begins with zeros: a graph
// of one microbatch serves all. With a capacity a choice beyond it takes no row: the token goes without that expert,
// the weights of its others stay, and those of its weight's gradient are 0. Losses count all choices, the expert bias
// the rows. Generation drops none. T: tokens of this rank, H: hidden size, E: experts, K: choices a token
#pragma once

#include <functional>

#include "core/layers/norm.h"
#include "moe/dispatcher.h"
#include "moe/ops/router.h"

namespace megalith {

// Adds up counts, int32, over a group of ranks.
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
    float aux_coeff = 0, sequence_aux_coeff = 0, global_aux_coeff = 0, z_coeff = 0;
    double capacity_factor = 0;     // rows of an expert over the mean, at most, on this rank; 0: any number
    bool drops_last = false;        // those that come last, not those of the lowest weight
    std::int64_t expert_layer = 0;  // number among the layers of experts: its place in a microbatch's sums and counts
    bool expert_bias = false;       // for the choice, with kSigmoid; whom counts of rows update (moe/ops/expert_bias.h)
    bool random_logits = false;     // in place of its own, as --moe-router-force-load-balancing has them
    TensorSplit split = {};
    // Over the ranks that share the sequences of a microbatch (tp and cp), and over these and their replicas; empty
    // where this rank is the only one.
    SumCounts sum_counts = {}, sum_all_counts = {};
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
    kPositions,
    kSent = kPositions,  // with a dispatcher: the choices that get a row
    kExpertOffsets,
    kChosenOffsets,
    kLogitsGradient
  };
  enum Child { kNorm };
  // Where each choice's row is, as in moe/routed.h.
  struct Routes {
    Tensor offsets, token, position, row_weight;
  };
  // Consecutive rows of this rank, whose balance a loss is about.
  struct Piece {
    std::int64_t first = 0, count = 0;
    Tensor loads = {};  // [E] of RelativeLoads
  };

  Tensor make_logits(const Context& ctx, const Microbatch& mb, const Tensor& normed) const;
  Routes routes_of(const Context& ctx, const Tensor& choice, const Tensor& weight) const;
  // The choices that get a row, of those that are routed; `choice` itself where all do.
  Tensor kept_choices(const Context& ctx, const Microbatch& mb, const Tensor& choice, const Routes& all) const;
  std::vector<Piece> pieces(const Microbatch& mb, const Tensor& choice) const;
  Tensor sequence_offsets(const Context& ctx, const std::vector<Piece>& pieces, const Tensor& choice) const;
  void set_loads(const Context& ctx, const Microbatch& mb, Stash& stash, std::vector<Piece>& pieces) const;
  Tensor backward_router(const Context& ctx, const Microbatch& mb, const Tensor& d_weight, Stash& stash) const;
  // Of the weights of the choices, and of the norm's output through the experts' rows.
  Tensor weight_gradient(const Context& ctx, const TensorList& gradients, Stash& stash) const;
  Tensor normed_gradient(const Context& ctx, const TensorList& gradients, Stash& stash) const;
  bool balances() const { return spec_.aux_coeff != 0 || spec_.sequence_aux_coeff != 0 || spec_.global_aux_coeff != 0; }
  bool has_losses() const { return balances() || spec_.z_coeff != 0; }

  Spec spec_;
  Norm norm_;
  Parameter& weight_;                      // [E, H]
  const ParameterBuffer* bias_ = nullptr;  // [E]
};

}  // namespace megalith

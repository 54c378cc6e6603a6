// The router's losses, which balance experts and bound logits; forms: moe/ops/router.h. They are summed in the backward
// pass, where their gradients are, so that a recomputed forward counts them once.
// The loss over the global batch counts as Megatron-LM's global_aux_loss does: of microbatch m the rows of microbatches
// 0 to m of the step, of all ranks that hold other tokens (tp, cp, dp). Its mean over the step's tokens is added to the
// loss whatever the layout is; Megatron-LM divides it by the replicas on top. Backward passes count the rows, since
// their microbatches come in order in every schedule, on the device, in memory that a step begins with zeros: a graph
// of one microbatch serves all. Losses count all choices, those without a row too. T: tokens of this rank, E: experts,
// K: choices of a token
#pragma once

#include <functional>
#include <vector>

#include "core/layers/segment.h"
#include "moe/ops/router.h"

namespace megalith {

// Adds up counts, int32, over a group of ranks.
using SumCounts = std::function<void(const Context& ctx, const Tensor& counts)>;

class RoutingLosses {
 public:
  struct Spec {
    // Coefficients, as Megatron's flags have them.
    float aux_coeff = 0, sequence_aux_coeff = 0, global_aux_coeff = 0, z_coeff = 0;
    // Over the ranks that share the sequences of a microbatch (tp and cp), and over these and their replicas; empty
    // where this rank is the only one.
    SumCounts sum_counts = {}, sum_all_counts = {};
  };
  // Of the router that has the losses.
  struct Site {
    std::int64_t experts = 0;
    RouterScore score = RouterScore::kSoftmaxOfChosen;
    std::int64_t expert_layer = 0;
    TensorSplit split = {};
  };
  // Of a microbatch.
  struct Chosen {
    Tensor logits;   // [T, E] fp32
    Tensor choice;   // [T, K] int32
    Tensor offsets;  // [E + 1] int32, of the rows of all choices; read if balances()
  };
  // Consecutive rows of this rank, whose balance a loss is about.
  struct Piece {
    std::int64_t first = 0, count = 0;
    Tensor loads = {};  // [E] of RelativeLoads; absent unless balances()
  };

  RoutingLosses(const Spec& spec, const Site& site) : spec_(spec), site_(site) {}

  bool balances() const { return spec_.aux_coeff != 0 || spec_.sequence_aux_coeff != 0 || spec_.global_aux_coeff != 0; }
  bool any() const { return balances() || spec_.z_coeff != 0; }
  float z_coeff() const { return spec_.z_coeff; }

  // Adds the losses to the step's sums. Returns this rank's rows in pieces, whose loads RouterTopkBackward reads.
  std::vector<Piece> add(const Context& ctx, const Microbatch& mb, const Chosen& chosen) const;

 private:
  std::vector<Piece> pieces(const Microbatch& mb, const Tensor& choice) const;
  Tensor sequence_offsets(const Context& ctx, const std::vector<Piece>& pieces, const Tensor& choice) const;
  void set_loads(const Context& ctx, const Microbatch& mb, const Chosen& chosen, std::vector<Piece>& pieces) const;

  Spec spec_;
  Site site_;
};

}  // namespace megalith

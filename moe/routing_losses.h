// Router losses that balance experts and bound logits; formulas: moe/ops/router.h. Backward sums them together with
// their gradients, so a recomputed forward counts each loss once.
// The global-batch loss counts as Megatron-LM's global_aux_loss. For microbatch m it counts rows of microbatches 0 to m
// of the step, over all ranks with other tokens (tp, cp, dp). Its mean over the step's tokens is added to the loss for
// any layout; Megatron-LM also divides it by the replicas. Backward counts the rows, since its microbatches have the
// same order in every schedule. The counts are on the device and are zeroed per step, so one graph serves all
// microbatches. Losses count all choices, including those without a row. T: tokens of this rank, E: experts, K: choices
// of a token.
#pragma once

#include <functional>
#include <vector>

#include "core/layers/segment.h"
#include "moe/ops/router.h"

namespace megalith {

// Sums int32 counts over a group of ranks.
using SumCounts = std::function<void(const Context& ctx, const Tensor& counts)>;

class RoutingLosses {
 public:
  struct Spec {
    // Coefficients, as in Megatron-LM's flags.
    float aux_coeff = 0, sequence_aux_coeff = 0, global_aux_coeff = 0, z_coeff = 0;
    // Sums over the ranks that share a microbatch's sequences (tp and cp), and over these and the replicas. Empty for a
    // group of one rank.
    SumCounts sum_counts = {}, sum_all_counts = {};
  };
  // Properties of the router that has the losses.
  struct Site {
    std::int64_t experts = 0;
    RouterScore score = RouterScore::kSoftmaxOfChosen;
    std::int64_t expert_layer = 0;
    TensorSplit split = {};
  };
  // Router results of a microbatch.
  struct Chosen {
    Tensor logits;   // [T, E] fp32
    Tensor choice;   // [T, K] int32
    Tensor offsets;  // [E + 1] int32, over all choices; read if balances()
  };
  // Consecutive rows of this rank that one balancing loss covers.
  struct Piece {
    std::int64_t first = 0, count = 0;
    Tensor loads = {};  // [E], from RelativeLoads; absent unless balances()
  };

  RoutingLosses(const Spec& spec, const Site& site) : spec_(spec), site_(site) {}

  bool balances() const { return spec_.aux_coeff != 0 || spec_.sequence_aux_coeff != 0 || spec_.global_aux_coeff != 0; }
  bool any() const { return balances() || spec_.z_coeff != 0; }
  float z_coeff() const { return spec_.z_coeff; }

  // Adds the losses to the step's sums. Returns this rank's rows in pieces, with the loads for RouterTopkBackward.
  std::vector<Piece> add(const Context& ctx, const Microbatch& mb, const Chosen& chosen) const;

 private:
  std::vector<Piece> pieces(const Microbatch& mb, const Tensor& choice) const;
  Tensor sequence_offsets(const Context& ctx, const std::vector<Piece>& pieces, const Tensor& choice) const;
  void set_loads(const Context& ctx, const Microbatch& mb, const Chosen& chosen, std::vector<Piece>& pieces) const;

  Spec spec_;
  Site site_;
};

}  // namespace megalith

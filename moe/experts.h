// MLPs of the experts on routed rows. For row r of token t and expert e:
//   h = [x_t gate_e^T | x_t up_e^T];  y_r = w_r silu(h_gate) h_up;  out_r = y_r down_e^T
// SwiGLU: Shazeer 2020, arXiv:2002.05202. GEMMs read rows through their index in forward and backward, so no permuted
// copy is made. `fused` computes the activation and its gradient in the GEMM kernels, with equal bits and slots.
// Dims: moe/routed.h; F: this rank's FFN columns of an expert (expert tensor parallelism).
#pragma once

#include "core/layers/segment.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith {

// Part of a layer's experts and of their columns that a rank holds.
struct ExpertSplit {
  int rank = 0;  // index among `ranks` equal parts of the experts (ep)
  int ranks = 1;
  int column_rank = 0;  // index among `column_ranks` equal parts of F (etp)
  int column_ranks = 1;
};

class Experts : public Segment {
 public:
  struct Spec {
    std::string name;  // logical names' prefix: "decoder.layers.3.mlp.experts."
    std::int64_t hidden = 0;
    std::int64_t ffn = 0;      // of an unsharded expert
    std::int64_t experts = 0;  // of the layer
    ExpertSplit split = {};
    bool fused = true;
    float init_std = 0;
    float output_init_std = 0;
  };

  Experts(ParameterStore& store, const Spec& spec);

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kInput, kTokenOfRow, kExpertOffsets, kWeightOfRow, kPreActivation, kActivation, kOutputGradient };

  Spec spec_;
  std::int64_t ffn_;  // FFN columns of this rank
  Parameter& gate_;   // [E_local F, H]
  Parameter& up_;     // [E_local F, H]
  Parameter& down_;   // [E_local H, F]
};

}  // namespace megalith

// The experts' MLPs on routed rows: of each row r of token t and expert e
//   h = [x_t gate_e^T | x_t up_e^T];  y_r = w_r silu(h_gate) h_up;  out_r = y_r down_e^T
// SwiGLU: Shazeer 2020, arXiv:2002.05202. Rows are read through their index, forward and backward, so that nothing is
// permuted in memory. With `fused` the activation and its gradient are in the products' kernels: the same bits, and the
// same slots.
// Dims as in moe/routed.h; F: this rank's columns of an expert's FFN (expert tensor parallelism)
#pragma once

#include "core/layers/segment.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith {

// Which experts of a layer a rank holds, and which of their columns: numbers alone.
struct ExpertSplit {
  int rank = 0;  // it holds the rank-th of `ranks` equal parts of the experts (ep)
  int ranks = 1;
  int column_rank = 0;  // and of each of them the column_rank-th of `column_ranks` equal parts of F (etp)
  int column_ranks = 1;
};

class Experts : public Segment {
 public:
  struct Spec {
    std::string name;  // logical names' prefix: "decoder.layers.3.mlp.experts."
    std::int64_t hidden = 0;
    std::int64_t ffn = 0;      // of a whole expert
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
  std::int64_t ffn_;  // of this rank
  Parameter& gate_;   // [E_local F, H]
  Parameter& up_;     // [E_local F, H]
  Parameter& down_;   // [E_local H, F]
};

}  // namespace megalith

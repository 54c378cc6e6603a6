// The experts' MLPs on routed rows: of each row r of token t and expert e
//   h = [x_t gate_e^T | x_t up_e^T];  y_r = w_r silu(h_gate) h_up;  out_r = y_r down_e^T
// SwiGLU: Shazeer 2020, arXiv:2002.05202. Rows are read through their index, forward and backward, so that nothing is
// permuted in memory. With `fused` the activation and its gradient are in the products' kernels: the same bits, and the
// same slots.
// T: tokens, H: hidden size, E: experts, F: FFN size of an expert, R: routed rows
#pragma once

#include "core/layers/segment.h"
#include "core/ops/grouped_gemm.h"

namespace megalith {

class Experts : public Segment {
 public:
  struct Spec {
    std::string name;  // logical names' prefix: "decoder.layers.3.mlp.experts."
    std::int64_t hidden = 0;
    std::int64_t ffn = 0;
    std::int64_t experts = 0;
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

  Parameter& add(ParameterStore& store, const char* name, std::int64_t rows, std::int64_t columns, float std) const;

  Spec spec_;
  Parameter& gate_;  // [E F, H]
  Parameter& up_;    // [E F, H]
  Parameter& down_;  // [E H, F]
};

}  // namespace megalith

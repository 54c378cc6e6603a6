// MLPs of the experts on routed rows. For row r of token t and expert e:
//   h = x_t fc1_e^T (+ fc1_bias_e);  y_r = w_r f(h);  out_r = y_r down_e^T (+ w_r down_bias_e)
// f is the activation. SwiGLU (Shazeer 2020, arXiv:2002.05202): fc1_e = [gate_e; up_e], f(h) = silu(h_gate) h_up.
// GEMMs read rows through their index in forward and backward, so no permuted copy is made. `fused` computes SwiGLU
// without biases, and its gradient, in the GEMM kernels, with equal bits and slots. Other experts run separate ops.
// Biases under expert tensor parallelism: each rank has its columns of fc1_bias and all of down_bias, which the first
// one adds. Dims: moe/routed.h; F: this rank's FFN columns of an expert; W: 2F for SwiGLU, else F.
#pragma once

#include "core/layers/mlp.h"
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
    Activation activation = Activation::kSwiglu;
    bool bias = false;
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

  bool has_gate() const { return up_ != nullptr; }
  bool adds_output_bias() const { return fc2_bias_ != nullptr && spec_.split.column_rank == 0; }
  // Runs fc1 and the activation, or their counterparts in backward. The op's tensors are those of the fused one, with h
  // and dh of W columns and without `up` if there is no gate.
  void forward_fc1(const Context& ctx, const GroupedGemmSwiglu& op) const;
  void backward_fc2(const Context& ctx, const GroupedGemmSwigluBackward& op) const;
  void backward_weight_of_biases(const Context& ctx, const Tensor& dy, const Tensor& dh, Stash& stash) const;

  Spec spec_;
  std::int64_t ffn_;                                    // FFN columns of this rank
  Parameter* fc1_;                                      // [E_local F, H]: gate, or all of fc1
  Parameter* up_;                                       // [E_local F, H]; null: no gate
  Parameter* fc2_;                                      // [E_local H, F]
  Parameter *fc1_bias_ = nullptr, *up_bias_ = nullptr;  // [E_local F]
  Parameter* fc2_bias_ = nullptr;                       // [E_local H]
};

}  // namespace megalith

// y = x W^T (+ b). T tokens, I inputs, O outputs.
#pragma once

#include "core/layers/segment.h"

namespace megalith {

struct LinearSpec {
  std::string name;  // logical name without ".weight"
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  bool bias = false;
  float init_std = 0;
  SlotKind input_kind = SlotKind::kOther;  // of the kept input
  // A fused projection: each part's name and outputs, in order; empty: one tensor called `name`. `unit` outputs stay
  // together where a part is split among ranks: a head.
  struct Part {
    std::string name;
    std::int64_t outputs = 0;
    std::int64_t unit = 1;
  };
  std::vector<Part> parts = {};
};

// x @ w with optional transposes, into a new tensor of x's dtype.
Tensor matmul(const Context& ctx, const Tensor& x, const Tensor& w, bool transpose_x = false, bool transpose_w = false,
              const Tensor& bias = {});

class Linear : public Layer {
 public:
  enum Slot { kInput, kOutputGradient };

  Linear(ParameterStore& store, const LinearSpec& spec);

  Tensor forward(const Context& ctx, const Microbatch& mb, const Tensor& x,
                 Stash& stash) const override;  // [T, I] -> [T, O]
  Tensor backward_data(const Context& ctx, const Microbatch& mb, const Tensor& dy,
                       Stash& stash) const override;  // [T, O] -> [T, I]
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
  // GELU in the GEMM. Not forward under --deterministic-mode: there a recomputed GELU shall have the bits of the kept
  // one, and on CUDA the GEMM applies it before it rounds.
  Activated forward_gelu(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const override;
  Tensor backward_data_gelu(const Context& ctx, const Microbatch& mb, const Tensor& dy, const Tensor& gelu_input,
                            Stash& stash) const override;

  using Layer::backward_data;
  using Layer::forward;

 private:
  SlotKind input_kind_;
  Parameter& weight_;          // [O, I]
  Parameter* bias_ = nullptr;  // [O]
};

// Adds the outer-product gradient of y = x W^T to main gradients: dW += dy^T x, db += sum over rows of dy.
void accumulate_linear_gradient(const Context& ctx, const Tensor& x, const Tensor& dy, const Parameter& weight,
                                const Parameter* bias);

}  // namespace megalith

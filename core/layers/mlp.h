// The MLP half of a transformer block: (hidden, residual) -> (fc2 output, residual + hidden).
//   r = residual + hidden;  n = norm(r);  a = fc1(n);  f = activation(a);  out = dropout(fc2(f))
// SwiGLU: Shazeer 2020, arXiv:2002.05202; GELU: Hendrycks & Gimpel 2016, arXiv:1606.08415.
// T tokens, H hidden, F ffn.
#pragma once

#include "core/layers/attention.h"

namespace megalith {

enum class Activation : std::uint8_t { kSwiglu, kGeluTanh, kGeluExact };

class Mlp : public Segment {
 public:
  struct Spec {
    Activation activation = Activation::kSwiglu;
    DropoutSpec dropout;
  };
  // fc1: [T, H] -> [T, F], or [T, 2F] = [gate | up] for SwiGLU; fc2: [T, F] -> [T, H].
  struct Parts {
    Norm norm;
    std::unique_ptr<Linear> fc1;
    std::unique_ptr<Linear> fc2;
  };

  Mlp(const Spec& spec, Parts parts) : spec_(spec), parts_(std::move(parts)) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kPreActivation };
  enum Child { kNorm, kFc1, kFc2 };

  // Computes fc1 and the activation, or the gradient of fc1's output. GELU's tanh form is left to the linears, which
  // may fuse it into their GEMMs.
  Linear::Activated forward_fc1(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const;
  Tensor backward_data_fc2(const Context& ctx, const Microbatch& mb, const Tensor& dy, const Tensor& pre_activation,
                           Stash& stash) const;
  Tensor activate(const Context& ctx, const Tensor& x) const;

  Spec spec_;
  Parts parts_;
};

}  // namespace megalith

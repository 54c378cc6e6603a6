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
    std::unique_ptr<Layer> fc1;
    std::unique_ptr<Layer> fc2;
  };

  Mlp(const Spec& spec, Parts parts) : spec_(spec), parts_(std::move(parts)) {}

  TensorList forward(Context& ctx, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(Context& ctx, const TensorList& output_gradients, Stash& stash) const override;
  void backward_weight(Context& ctx, Stash& stash) const override;

 private:
  enum Slot { kPreActivation };
  enum Child { kNorm, kFc1, kFc2 };

  Tensor activate(Context& ctx, const Tensor& x) const;
  Tensor activate_backward(Context& ctx, const Tensor& x, const Tensor& dy) const;

  Spec spec_;
  Parts parts_;
};

}  // namespace megalith

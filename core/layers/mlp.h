// The MLP half of a transformer block: (hidden, residual) -> (fc2 output, residual + hidden).
//   r = residual + hidden;  n = norm(r);  a = fc1(n);  f = activation(a);  out = dropout(fc2(f))
// SwiGLU: Shazeer 2020, arXiv:2002.05202; GELU: Hendrycks & Gimpel 2016, arXiv:1606.08415.
// Squared ReLU: So et al. 2021, arXiv:2109.08668.
// T tokens, H hidden, F ffn.
#pragma once

#include "core/layers/attention.h"
#include "core/ops/elementwise/activation.h"

namespace megalith {

enum class Activation : std::uint8_t { kSwiglu, kGeluTanh, kGeluExact, kSquaredRelu };

// Returns the function of an activation other than SwiGLU.
Pointwise pointwise_of(Activation activation);
// Computes y, [T, F], from x, which is [T, 2F] for SwiGLU and else [T, F].
void launch_activation(const Context& ctx, Activation activation, const Tensor& x, const Tensor& y);
// Computes dx from dy, and y again if present. y may be dy; dx may be dy for other activations than SwiGLU without y.
void launch_activation_backward(const Context& ctx, Activation activation, const Tensor& x, const Tensor& dy,
                                const Tensor& dx, const Tensor& y);

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

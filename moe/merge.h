// What experts made -> (hidden, residual): each token's rows are added up, and the output of a shared expert (Dai et
// al. 2024, arXiv:2401.06066), an MLP that every token passes, whose linears may be split among tensor-parallel ranks.
// A gate scales that by sigmoid(x g) (Qwen2-MoE, arXiv:2407.10671): as the router of a layer of one expert would, whose
// weight scales the activation in front of fc2.
#pragma once

#include "core/layers/attention.h"

namespace megalith {

class Merge : public Segment {
 public:
  struct Shared {
    std::unique_ptr<Linear> fc1;  // [T, H] -> [T, 2F] = [gate | up]
    std::unique_ptr<Linear> fc2;  // [T, F] -> [T, H]
    Parameter* gate = nullptr;    // [1, H]; null: none
    bool recompute = false;       // keep the input alone
  };

  // Without a shared expert fc1 and fc2 are null.
  Merge(const DropoutSpec& dropout, Shared shared, RowExchange& rows)
      : dropout_(dropout), shared_(std::move(shared)), rows_(rows) {}

  TensorList forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const override;
  TensorList backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                           Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

 private:
  enum Slot { kPreActivation, kInput };
  enum Child { kFc1, kFc2, kGate };
  enum GateSlot { kLogits, kChoice, kWeight, kRowWeight, kOffsets, kPosition, kLogitsGradient };

  // fc1 and the gate, of this rank's rows of x: what backward needs of them.
  void begin_shared(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const;
  void forward_gate(const Context& ctx, const Tensor& x, Stash& gate) const;
  // To the gradient of x adds that which reaches it through the gate.
  void backward_gate(const Context& ctx, const Tensor& partial, const Tensor& dx, Stash& gate) const;
  Tensor forward_shared(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const;
  Tensor backward_shared(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const;

  DropoutSpec dropout_;
  Shared shared_;
  RowExchange& rows_;
};

}  // namespace megalith

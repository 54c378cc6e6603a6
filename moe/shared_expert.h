// Shared expert (Dai et al. 2024, arXiv:2401.06066): an MLP that every token passes in addition to its experts.
// Tensor-parallel ranks may split its linears. A gate scales it by sigmoid(x g) (Qwen2-MoE, arXiv:2407.10671). The gate
// is a router with one expert whose weight scales the activation ahead of fc2. The MLP has two halves with separate
// stashes, so that each half can overlap with communication. The halves are fc1 with the gate, and the activation with
// fc2.
#pragma once

#include <memory>

#include "core/layers/mlp.h"

namespace megalith {

class SharedExpert {
 public:
  struct Parts {
    std::unique_ptr<Linear> fc1;  // [T, H] -> [T, W]: W = 2F, [gate | up], for SwiGLU, else F
    std::unique_ptr<Linear> fc2;  // [T, F] -> [T, H]
    Parameter* gate = nullptr;    // [1, H]; null: no gate
    bool recompute = false;       // keep only the input
    Activation activation = Activation::kSwiglu;
  };
  // From open() to close(). The last two are absent without a gate.
  struct Opened {
    Tensor x;           // [T, H], the input
    Tensor h;           // [T, W], fc1's output
    Tensor row_weight;  // [T] fp32
    Tensor offsets;     // [2] int32: all rows belong to one expert
    static constexpr Tensor Opened::*kTensors[] = {&Opened::x, &Opened::h, &Opened::row_weight, &Opened::offsets};
  };
  // Gradients from close to open.
  struct OpenedGradient {
    Tensor dh;       // [T, W]
    Tensor partial;  // [T, ceil(F / 64)] fp32, partial sums of the row weights' gradients; absent without a gate
    static constexpr Tensor OpenedGradient::*kTensors[] = {&OpenedGradient::dh, &OpenedGradient::partial};
  };

  SharedExpert(Parts parts, RowExchange& rows) : parts_(std::move(parts)), rows_(rows) {}

  bool has_gate() const { return parts_.gate != nullptr; }

  Opened open(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const;
  Tensor close(const Context& ctx, const Microbatch& mb, const Opened& opened, Stash& stash) const;  // [T, H]

  OpenedGradient close_backward_data(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const;
  Tensor open_backward_data(const Context& ctx, const Microbatch& mb, const OpenedGradient& gradient,
                            Stash& stash) const;  // [T, H]

  void close_backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const;
  void open_backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const;

 private:
  enum OpenChild { kFc1, kGate };
  enum GateSlot { kLogits, kChoice, kWeight, kPosition, kLogitsGradient };
  enum CloseSlot { kInput, kPreActivation, kRowWeight, kOffsets };
  enum CloseChild { kFc2 };

  std::int64_t columns_of(const Tensor& h) const;  // F
  void open_gate(const Context& ctx, Opened& opened, Stash& gate) const;
  // Adds the gradient through the gate to the gradient of x.
  void open_gate_backward(const Context& ctx, const Tensor& partial, const Tensor& dx, Stash& gate) const;

  Parts parts_;
  RowExchange& rows_;
};

}  // namespace megalith

// AdamW over all parameters of a store, with global gradient-norm clipping. Holds fp32 main parameters (the weights
// themselves where those are fp32) and both moments, in flat buffers per unit with the store's offsets. A step is three
// launches however many parameters there are (more beyond the ops' limits on CUDA).
// Loshchilov & Hutter 2017, arXiv:1711.05101.
#pragma once

#include <functional>
#include <vector>

#include "core/layers/parameter.h"
#include "core/ops/adamw.h"
#include "core/ops/grad_norm.h"

namespace megalith {

class AdamWOptimizer {
 public:
  struct Spec {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    double clip_grad = 1.0;                 // 0: no clipping
    DType exp_avg_dtype = DType::kFp32;     // fp32 | bf16; what bf16 loses: core/ops/adamw.h
    DType exp_avg_sq_dtype = DType::kFp32;  // likewise
    // Sums squares [P] fp64 of the gradients of this rank's slices over the ranks that hold the others; null: there are
    // none. P counts the logical tensors, in the order of their names.
    std::function<void(Stream&, const Tensor& squares)> sum_squares = nullptr;
  };
  // Flat buffers of one unit, [numel] each.
  struct UnitState {
    Tensor main_params;  // fp32
    Tensor exp_avg;      // fp32 | bf16, as exp_avg_sq
    Tensor exp_avg_sq;
  };

  // `store` is allocated and outlives the optimizer.
  AdamWOptimizer(ParameterStore& store, MemoryPool& pool, const Spec& spec);

  // Main parameters from the weights, moments zero.
  void initialize(Stream& stream);
  // Weights from the main parameters, after a checkpoint was loaded into these.
  void write_weights(Stream& stream);
  // Gradient norm, skip decision, update. `loss` [1] fp32 decides with the norm whether the step is skipped; its value
  // is passed on to parameters->loss.
  void step(Stream& stream, const Tensor& loss, StepParameters* parameters);

  const std::vector<UnitState>& units() const { return states_; }
  bool has_own_main_params() const { return own_main_params_; }

 private:
  void add_ranges(const ParameterUnit& unit, const UnitState& state);

  ParameterStore& store_;
  Spec spec_;
  bool own_main_params_ = false;
  std::vector<UnitState> states_;
  AdamW update_;
  SumOfSquares squares_;  // of the main gradients that this rank counts, in the order of the logical tensors' names
};

}  // namespace megalith

// AdamW over all parameters of a store, with global gradient-norm clipping. Holds fp32 main parameters (the weights
// themselves where those are fp32) and both moments, in flat buffers per unit with the store's offsets.
// Loshchilov & Hutter 2017, arXiv:1711.05101.
#pragma once

#include <string>
#include <vector>

#include "core/layers/parameter.h"
#include "core/ops/device_parameters.h"

namespace megalith {

class AdamWOptimizer {
 public:
  struct Spec {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    double clip_grad = 1.0;  // 0: no clipping
  };
  // Flat buffers of one unit, [numel] fp32 each.
  struct UnitState {
    Tensor main_params;
    Tensor exp_avg;
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
  // Consecutive elements of a unit that share a decay rule.
  struct Range {
    std::size_t unit;
    std::int64_t begin;
    std::int64_t count;
    bool decay;
  };

  ParameterStore& store_;
  Spec spec_;
  bool own_main_params_ = false;
  std::vector<UnitState> states_;
  std::vector<Range> ranges_;
  std::vector<Tensor> norm_inputs_;  // main gradients of the logical tensors, in the order of their names
  Tensor sums_;                      // [P] fp64: their sums of squares
};

}  // namespace megalith

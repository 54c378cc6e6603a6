// AdamW over all parameters of a store, with global gradient-norm clipping (Loshchilov & Hutter 2017,
// arXiv:1711.05101). Holds fp32 main parameters (the weights themselves where those are fp32) and both moments, in flat
// buffers per unit with the store's offsets. A step is three launches however many parameters there are (more beyond
// the ops' limits on CUDA, and with other ranks' parameters).
//
// Of a unit that data-parallel ranks share out (ZeRO, arXiv:1910.02054) it holds and updates the shard, cut wherever
// that falls in a tensor, and reads the gradients of the shard alone. Each element's update is bit-equal to the whole
// optimizer's, given gradient, norm and parameters. The norm, a sum over shards, may differ by some 1e-16 of itself; it
// reaches the update as an fp32 clip factor.
#pragma once

#include <string>
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
    // Logical names of all parameters of the model where the store holds a part of them; empty: the store's are all.
    std::vector<std::string> all_names = {};
    DeviceType planned_for = DeviceType::kCpu;  // the backend that a pool of a plan stands for
  };
  // Flat buffers of one unit's shard, [elements of the shard] each.
  struct UnitState {
    std::int64_t begin = 0;  // their first element in the unit's buffers
    Tensor main_params;      // fp32
    Tensor exp_avg;          // fp32 | bf16, as exp_avg_sq
    Tensor exp_avg_sq;
  };

  // `store` is allocated and outlives the optimizer.
  AdamWOptimizer(ParameterStore& store, MemoryPool& pool, const Spec& spec);

  // Main parameters from the weights, moments zero.
  void initialize(Stream& stream);
  // The square of each gradient's norm, in the order of all names; 0 for what the store or the shard does not hold, so
  // that a sum over ranks of other parameters is exact. With shards it is still to be summed over them.
  void sum_squares(Stream& stream);
  const Tensor& squares() const { return squares_; }  // [names] fp64
  // Gradient norm, skip decision, update. `loss` [1] fp32 decides with the norm whether the step is skipped; its value
  // is passed on to parameters->loss.
  void update(Stream& stream, const Tensor& loss, StepParameters* parameters);

  const std::vector<UnitState>& units() const { return states_; }
  bool has_own_main_params() const { return own_main_params_; }

 private:
  void add_ranges(const ParameterUnit& unit, const UnitState& state);

  ParameterStore& store_;
  Spec spec_;
  bool own_main_params_ = false;
  std::vector<UnitState> states_;
  AdamW update_;
  Tensor squares_;
  std::vector<SumOfSquares> sums_;  // of the main gradients of the logical tensors, in runs of neighbouring names
  bool holds_all_ = true;
};

}  // namespace megalith

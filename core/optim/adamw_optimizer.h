// AdamW over all parameters of a store, with global gradient-norm clipping (Loshchilov & Hutter 2017,
// arXiv:1711.05101). The optimizer holds fp32 main parameters and both moments, in flat buffers per unit with the
// store's offsets. Weights in fp32 are their own main parameters. A step is four launches for any number of parameters.
// Shards, and the ops' limits on CUDA, add launches.
//
// If data-parallel ranks shard a unit (ZeRO, arXiv:1910.02054), the optimizer updates this rank's elements from their
// gradients only. Shard bounds may fall within a tensor. Norm, clip factor and updates are bit-equal to those of the
// unsharded optimizer. Squares are summed over pieces of tensors, cut at the units' blocks; one rank owns each block.
// The pieces of all ranks are added in one order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/layers/parameter.h"
#include "core/ops/optim/adamw.h"
#include "core/ops/optim/grad_norm.h"
#include "core/optim/tensor_sums.h"

namespace megalith {

class AdamWOptimizer {
 public:
  struct Spec : SummedNames {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    double clip_grad = 1.0;                         // 0: no clipping
    DType exp_avg_dtype = DType::kFp32;             // fp32 | bf16; for the precision see core/ops/optim/adamw.h
    DType exp_avg_sq_dtype = DType::kFp32;          // fp32 | bf16
    std::vector<std::string> decoupled_names = {};  // tensors with StepParameters::decoupled_learning_rate
    bool counts_zeros = false;                      // of the gradients, for the log
    bool sums_params = false;                       // squares of the main parameters, for the log
  };
  // Flat buffers of the rank's elements of one unit, [owned elements] each.
  struct UnitState {
    std::int64_t begin = 0;  // the first owned element in the unit's buffers
    Tensor main_params;      // fp32
    Tensor exp_avg;          // fp32 | bf16, like exp_avg_sq
    Tensor exp_avg_sq;
  };

  // `store` must be allocated and outlive the optimizer.
  AdamWOptimizer(ParameterStore& store, MemoryPool& pool, const Spec& spec);

  // Copies the weights to the main parameters and zeroes the moments.
  void initialize(Stream& stream);
  // Sums of the gradients' squares. Each step they must hold those of all ranks ahead of update().
  const TensorSums& squares() const { return squares_; }
  // Sums of the gradients' zeros and of the main parameters' squares; none unless requested.
  const std::optional<TensorSums>& grad_zeros() const { return grad_zeros_; }
  const std::optional<TensorSums>& params_squares() const { return params_squares_; }
  // Computes the gradient norm, decides on a skip and updates. `loss` [1] fp32, the norm and `room` decide whether the
  // step is skipped. parameters->loss receives the value of `loss`.
  void update(Stream& stream, const Tensor& loss, StepParameters* parameters, const RowRoom& room = {});

  const std::vector<UnitState>& units() const { return states_; }
  bool has_own_main_params() const { return own_main_params_; }

 private:
  TensorSums::Values owned_grads() const;
  void add_ranges(const ParameterUnit& unit, const UnitState& state);

  ParameterStore& store_;
  Spec spec_;
  bool own_main_params_ = false;
  std::vector<UnitState> states_;
  AdamW update_;
  TensorSums squares_;
  std::optional<TensorSums> grad_zeros_, params_squares_;
};

}  // namespace megalith

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

#include <string>
#include <vector>

#include "core/layers/parameter.h"
#include "core/ops/optim/adamw.h"
#include "core/ops/optim/grad_norm.h"

namespace megalith {

class AdamWOptimizer {
 public:
  struct Spec {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    double clip_grad = 1.0;                 // 0: no clipping
    DType exp_avg_dtype = DType::kFp32;     // fp32 | bf16; for the precision see core/ops/optim/adamw.h
    DType exp_avg_sq_dtype = DType::kFp32;  // fp32 | bf16
    // Logical names of all parameters and of all experts' parameters of the model, if the store holds only a part.
    // If both are empty, the store holds all parameters.
    std::vector<std::string> all_names = {}, all_expert_names = {};
    // Index of this rank among the `expert_parts` ranks that hold parts of the experts' tensors.
    int expert_part = 0, expert_parts = 1;
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
  // Sums squares over the pieces that the store holds. Pieces of other owners are 0, so the sum of pieces() over the
  // owners is exact.
  void sum_squares(Stream& stream);
  const Tensor& pieces() const { return pieces_; }  // fp64, pieces of experts last
  Tensor pieces(UnitKind kind) const { return of_kind(pieces_, dense_pieces_, kind); }
  // Computes the squared norm of each gradient from the pieces of all ranks, in the order of all names. Experts come
  // last, part after part. Names that the store does not hold give 0, so a sum over ranks of other parameters is exact.
  void add_pieces(Stream& stream);
  const Tensor& squares() const { return squares_; }  // [names + expert names x parts] fp64
  Tensor squares(UnitKind kind) const { return of_kind(squares_, dense_names_, kind); }
  // Computes the gradient norm, decides on a skip and updates. `loss` [1] fp32, the norm and `room` decide whether the
  // step is skipped. parameters->loss receives the value of `loss`.
  void update(Stream& stream, const Tensor& loss, StepParameters* parameters, const RowRoom& room = {});

  const std::vector<UnitState>& units() const { return states_; }
  bool has_own_main_params() const { return own_main_params_; }

 private:
  void add_ranges(const ParameterUnit& unit, const UnitState& state);
  void cut_pieces(MemoryPool& pool);
  static Tensor of_kind(const Tensor& all, std::int64_t dense, UnitKind kind) {
    return kind == UnitKind::kDense ? all.slice(0, 0, dense) : all.slice(0, dense, all.size(0) - dense);
  }

  ParameterStore& store_;
  Spec spec_;
  bool own_main_params_ = false;
  std::vector<UnitState> states_;
  AdamW update_;
  Tensor pieces_, squares_;
  std::int64_t dense_pieces_ = 0, dense_names_ = 0;
  SumOfSquares sum_squares_;  // over the main gradients of the logical tensors
  AddPieces add_pieces_;
  bool has_shards_ = false;
};

}  // namespace megalith

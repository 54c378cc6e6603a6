// AdamW over all parameters of a store, with global gradient-norm clipping (Loshchilov & Hutter 2017,
// arXiv:1711.05101). Holds fp32 main parameters (the weights themselves where those are fp32) and both moments, in flat
// buffers per unit with the store's offsets. A step is four launches however many parameters there are (more beyond the
// ops' limits on CUDA, and with shards).
//
// Of a unit that data-parallel ranks share out (ZeRO, arXiv:1910.02054) it holds and updates what this rank owns, cut
// wherever that falls in a tensor, and reads the gradients of that alone. Norm, clip factor and each element's update
// are bit-equal to the whole optimizer's, given gradients and parameters: squares are summed over pieces of the
// tensors, cut at the units' blocks, which a rank owns whole or not at all, and the pieces of all ranks are added in
// one order.
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
    DType exp_avg_dtype = DType::kFp32;     // fp32 | bf16; what bf16 loses: core/ops/optim/adamw.h
    DType exp_avg_sq_dtype = DType::kFp32;  // likewise
    // Logical names of all parameters of the model, and of all experts', where the store holds a part of them; both
    // empty: the store's are all.
    std::vector<std::string> all_names = {}, all_expert_names = {};
    // Of the experts' tensors each of so many ranks has a part: this one the expert_part-th.
    int expert_part = 0, expert_parts = 1;
  };
  // Flat buffers of what the rank owns of one unit, [elements of that] each.
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
  // Sums of squares of the pieces of what the store holds; 0 for those that others own, over whom pieces() is then
  // summed, exactly.
  void sum_squares(Stream& stream);
  const Tensor& pieces() const { return pieces_; }  // fp64, those of experts last
  Tensor pieces(UnitKind kind) const { return of_kind(pieces_, dense_pieces_, kind); }
  // The square of each gradient's norm, from the pieces of all ranks, in the order of all names, those of experts last
  // and part after part; 0 for what the store does not hold, so that a sum over ranks of other parameters is exact.
  void add_pieces(Stream& stream);
  const Tensor& squares() const { return squares_; }  // [names + expert names x parts] fp64
  Tensor squares(UnitKind kind) const { return of_kind(squares_, dense_names_, kind); }
  // Gradient norm, skip decision, update. `loss` [1] fp32 decides with the norm and `room` whether the step is skipped;
  // its value is passed on to parameters->loss.
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
  SumOfSquares sum_squares_;  // of the main gradients of the logical tensors
  AddPieces add_pieces_;
  bool has_shards_ = false;
};

}  // namespace megalith

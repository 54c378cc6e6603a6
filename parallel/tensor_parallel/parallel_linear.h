// Linears split among the P ranks of a tensor-parallel group. T tokens, I inputs, O outputs of the whole layer.
// Column-parallel, y_r = x W_r^T + b_r: each rank has O / P rows of W, [O, I], and of b. Its y is [T, O / P]. The
// gradients of x are summed over ranks. A fused projection is split part by part, and a part of fewer units than ranks
// (heads of keys and values) is held by several, whose gradients of it are then summed.
// Row-parallel, y = sum_r x_r W_r^T + b: each rank has I / P columns of W; b is whole on every rank, and added by the
// first.
// With sequence parallelism the outer side, x of a column- and y of a row-parallel linear, is [T / P, .]: this rank's
// rows. A column-parallel linear then keeps its own rows of x and gathers them again for the weight gradient; under
// overlap during backward_data, from which on it keeps them all, unless x is recomputed behind that.
// Stash slots are those of Linear, and kWholeInput.
#pragma once

#include "core/layers/linear.h"
#include "parallel/tensor_parallel/tensor_group.h"

namespace megalith {

class ColumnParallelLinear : public Layer {
 public:
  enum Slot { kWholeInput = Linear::kOutputGradient + 1 };

  // `spec` is the whole layer's; `group` outlives the layer.
  ColumnParallelLinear(ParameterStore& store, const LinearSpec& spec, TensorGroup& group);

  Tensor forward(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const override;
  Tensor backward_data(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
  Activated forward_gelu(const Context& ctx, const Microbatch& mb, const Tensor& x,
                         Stash& stash) const override;  // as Linear's

  using Layer::backward_data;
  using Layer::forward;

 private:
  std::string name_;
  SlotKind input_kind_;
  TensorGroup& group_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

class RowParallelLinear : public Layer {
 public:
  RowParallelLinear(ParameterStore& store, const LinearSpec& spec, TensorGroup& group);

  Tensor forward(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const override;
  Tensor backward_data(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;
  Tensor backward_data_gelu(const Context& ctx, const Microbatch& mb, const Tensor& dy, const Tensor& gelu_input,
                            Stash& stash) const override;

  using Layer::backward_data;
  using Layer::forward;

 private:
  std::string name_;
  SlotKind input_kind_;
  TensorGroup& group_;
  Parameter& weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith

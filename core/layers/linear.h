// y = x W^T (+ b), on one rank or split among the P ranks of a tensor-parallel group (Shoeybi et al. 2019,
// arXiv:1909.08053). T tokens, I inputs, O outputs of the whole layer.
// Split by outputs (column-parallel), y_r = x W_r^T + b_r: each rank has O / P rows of W, [O, I], and of b. Its y is
// [T, O / P]. The gradients of x are summed over ranks. A fused projection is split part by part, and a part of fewer
// units than ranks (heads of keys and values) is held by several, whose gradients of it are then summed.
// Split by inputs (row-parallel), y = sum_r x_r W_r^T + b: each rank has I / P columns of W; b is whole on every rank,
// and added by the first.
// With sequence parallelism the outer side, x of the former and y of the latter, is [T / P, .]: this rank's rows. The
// former then keeps its own rows of x and gathers them again for the weight gradient; under overlap during
// backward_data, from which on it keeps them all, unless x is recomputed after that.
#pragma once

#include "core/layers/row_exchange.h"
#include "core/layers/segment.h"
#include "core/ops/gemm/gemm.h"

namespace megalith {

struct LinearSpec {
  std::string name;  // logical name without ".weight"
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  bool bias = false;
  float init_std = 0;
  SlotKind input_kind = SlotKind::kOther;  // of the kept input
  // A fused projection: each part's name and outputs, in order; empty: one tensor called `name`. `unit` outputs stay
  // together where a part is split among ranks: a head.
  struct Part {
    std::string name;
    std::int64_t outputs = 0;
    std::int64_t unit = 1;
  };
  std::vector<Part> parts = {};  // not where the inputs are split
  bool splits_inputs = false;    // among ranks; otherwise the outputs
  bool one_write = false;        // of the weight (Parameter): backward_weight runs once for each microbatch
};

// x @ w with optional transposes, into a new tensor of x's dtype.
Tensor matmul(const Context& ctx, const Tensor& x, const Tensor& w, bool transpose_x = false, bool transpose_w = false);
// What makes a piece of rows of gemm.c, or reads one of gemm.a; that field of `gemm` is absent.
RowExchange::RowsTask make_rows(const Context& ctx, const Gemm& gemm);
RowExchange::RowsTask read_rows(const Context& ctx, const Gemm& gemm);

class Linear : public Layer {
 public:
  enum Slot { kInput, kOutputGradient, kWholeInput };

  // `spec` is the whole layer's; `rows` outlives the layer.
  Linear(ParameterStore& store, const LinearSpec& spec, RowExchange& rows);

  Tensor forward(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const override;
  Tensor backward_data(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

  // forward with a GELU (tanh form) after it, and backward_data with one before it: in the GEMM after a layer split by
  // outputs and before one split by inputs, otherwise an op of its own. So is forward's under --deterministic-mode:
  // there a recomputed GELU must match the stored one bit for bit, and on CUDA the GEMM applies it before it rounds.
  struct Activated {
    Tensor input, output;  // of the GELU; its input is what forward gives
  };
  Activated forward_gelu(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const;
  Tensor backward_data_gelu(const Context& ctx, const Microbatch& mb, const Tensor& dy, const Tensor& gelu_input,
                            Stash& stash) const;

  using Layer::backward_data;
  using Layer::forward;

 private:
  Tensor bias() const;  // that this rank adds
  Tensor read_gradient(const Context& ctx, const Tensor& dy, const Gemm& gemm, Stash& stash) const;

  std::string name_;
  SlotKind input_kind_;
  bool splits_inputs_;
  RowExchange& rows_;
  Parameter& weight_;          // [O / P, I] or [O, I / P]
  Parameter* bias_ = nullptr;  // [O / P] or [O]
};

// Adds the outer-product gradient of y = x W^T to main gradients: dW += dy^T x, db += sum over rows of dy.
void accumulate_linear_gradient(const Context& ctx, const Tensor& x, const Tensor& dy, const Parameter& weight,
                                const Parameter* bias);

}  // namespace megalith

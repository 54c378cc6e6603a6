// y = x W^T (+ b), on one rank or split among the P ranks of a tensor-parallel group (Shoeybi et al. 2019,
// arXiv:1909.08053). T tokens, I inputs, O outputs of the unsharded layer.
// Column-parallel (split by outputs), y_r = x W_r^T + b_r: each rank has O / P rows of W, [O, I], and of b. Its y is
// [T, O / P]. The gradients of x are summed over ranks. A fused projection is split part by part. If a part has fewer
// units (key/value heads) than ranks, several ranks hold a unit and sum its gradients.
// Row-parallel (split by inputs), y = sum_r x_r W_r^T + b: each rank has I / P columns of W and all of b, which the
// first rank adds.
// With sequence parallelism, x of a column-parallel and y of a row-parallel layer are [T / P, .]: this rank's rows. The
// column-parallel layer keeps its rows of x and gathers x again for the weight gradient. Under overlap it gathers x in
// backward_data and keeps it, unless x is recomputed later.
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
  SlotKind input_kind = SlotKind::kOther;  // kind of the kept input
  // Parts of a fused projection in order, with names and outputs; empty: one tensor called `name`. `unit` outputs, such
  // as a head, stay together if a part is split among ranks.
  struct Part {
    std::string name;
    std::int64_t outputs = 0;
    std::int64_t unit = 1;
  };
  std::vector<Part> parts = {};  // not with splits_inputs
  bool splits_inputs = false;    // row-parallel; otherwise column-parallel
  bool one_write = false;        // Parameter::one_write: backward_weight runs once for each microbatch
};

// Returns x @ w with optional transposes, a new tensor of x's dtype.
Tensor matmul(const Context& ctx, const Tensor& x, const Tensor& w, bool transpose_x = false, bool transpose_w = false);
// Returns the task that makes a piece of rows of gemm.c, or reads one of gemm.a; that field of `gemm` is absent.
RowExchange::RowsTask make_rows(const Context& ctx, const Gemm& gemm);
RowExchange::RowsTask read_rows(const Context& ctx, const Gemm& gemm);

class Linear : public Layer {
 public:
  enum Slot { kInput, kOutputGradient, kWholeInput };

  // `spec` is the unsharded layer's; `rows` outlives the layer.
  Linear(ParameterStore& store, const LinearSpec& spec, RowExchange& rows);

  Tensor forward(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const override;
  Tensor backward_data(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

  // Fuses GELU (tanh form) into the GEMM: into forward of a column-parallel layer, and into backward_data of a
  // row-parallel one. Otherwise GELU is a separate op. Under --deterministic-mode forward's GELU is separate too. A
  // recomputed GELU must match the stored one bit for bit, but on CUDA the GEMM applies GELU before rounding.
  struct Activated {
    Tensor input, output;  // input (forward's output) and output of the GELU
  };
  Activated forward_gelu(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const;
  Tensor backward_data_gelu(const Context& ctx, const Microbatch& mb, const Tensor& dy, const Tensor& gelu_input,
                            Stash& stash) const;

  using Layer::backward_data;
  using Layer::forward;

 private:
  Tensor bias() const;  // the bias that this rank adds
  Tensor read_gradient(const Context& ctx, const Tensor& dy, const Gemm& gemm, Stash& stash) const;

  std::string name_;
  SlotKind input_kind_;
  bool splits_inputs_;
  RowExchange& rows_;
  Parameter& weight_;          // [O / P, I] or [O, I / P]
  Parameter* bias_ = nullptr;  // [O / P] or [O]
};

// Adds the gradient of y = x W^T to main gradients: dW += dy^T x, db += sum over rows of dy.
void accumulate_linear_gradient(const Context& ctx, const Tensor& x, const Tensor& dy, const Parameter& weight,
                                const Parameter* bias);

}  // namespace megalith

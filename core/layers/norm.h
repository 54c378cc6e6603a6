// RMSNorm or LayerNorm over the last dim, fused with the preceding residual add. Part of a segment, which routes the
// residual; not a segment itself.
#pragma once

#include "core/layers/segment.h"

namespace megalith {

enum class NormKind : std::uint8_t { kLayerNorm, kRmsNorm };

class Norm {
 public:
  struct Spec {
    std::string name;  // logical name without ".weight"
    NormKind kind = NormKind::kRmsNorm;
    std::int64_t size = 0;
    float eps = 1e-5f;
    bool zero_centered = false;              // the norm multiplies by 1 + weight, and the weight starts as zeros
    SlotKind input_kind = SlotKind::kOther;  // kind of the kept input (the residual stream)
    TensorSplit split = {};
    bool partial_gradient = false;  // each tensor-parallel rank has a part of the rows
  };
  enum Slot { kNormInput, kRstd, kMean, kWeightPartial, kBiasPartial };

  Norm(ParameterStore& store, const Spec& spec);

  // Returns y = norm(x + residual); `residual` may be absent. The stash keeps the sum as kNormInput.
  Tensor forward(const Context& ctx, const Tensor& x, const Tensor& residual, Stash& stash) const;
  // Returns d(x + residual) = the norm's gradient + d_residual (optional). `reader`, if given, is the stash of the
  // following linear. If that stash did not keep its input y, y is recomputed into it, bit for bit. RMSNorm's backward
  // computes y in the same pass; LayerNorm's forward runs again.
  Tensor backward_data(const Context& ctx, const Tensor& dy, const Tensor& d_residual, Stash& stash,
                       Stash* reader = nullptr) const;
  // Writes the same gradient into `dx`, which may be strided.
  void backward_data_into(const Context& ctx, const Tensor& dy, const Tensor& d_residual, const Tensor& dx,
                          Stash& stash, Stash* reader = nullptr) const;
  void backward_weight(const Context& ctx, Stash& stash) const;

 private:
  void run(const Context& ctx, const Tensor& x, const Tensor& residual, const Tensor& sum, const Tensor& y,
           const Tensor& mean, const Tensor& rstd) const;

  Spec spec_;
  Parameter* weight_;          // [size]
  Parameter* bias_ = nullptr;  // [size], LayerNorm only
};

}  // namespace megalith

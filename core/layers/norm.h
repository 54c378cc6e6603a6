// RMSNorm or LayerNorm over the last dim as part of a segment, with the residual add in front fused in. Not a segment
// itself: who owns it decides where the residual goes.
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
    SlotKind input_kind = SlotKind::kOther;  // of the kept input (the residual stream)
    TensorSplit split = {};
    bool partial_gradient = false;  // each rank of the split sees a part of the rows
  };
  enum Slot { kNormInput, kRstd, kMean, kWeightPartial, kBiasPartial };

  Norm(ParameterStore& store, const Spec& spec);

  // y = norm(x + residual); `residual` may be absent. The sum is kept as kNormInput.
  Tensor forward(const Context& ctx, const Tensor& x, const Tensor& residual, Stash& stash) const;
  // d(x + residual) = the norm's gradient + d_residual (optional). `reader`, where given, is the stash of the linear
  // behind: if it did not keep y, its input, it gets y again, bit for bit. RMSNorm's gradient makes it on its way;
  // LayerNorm runs once more.
  Tensor backward_data(const Context& ctx, const Tensor& dy, const Tensor& d_residual, Stash& stash,
                       Stash* reader = nullptr) const;
  // The same into `dx`, which may be strided.
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

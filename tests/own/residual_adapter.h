// A bottleneck on the residual stream, y = x + gelu(x A^T) B^T; Houlsby et al. 2019, arXiv:1902.00751, section 2. The
// example of CONTRIBUTING.md for weights that are split over tensor-parallel ranks. Rank r of P has rows r R / P to (r
// + 1) R / P of A, [R, H], and the same columns of B, [H, R]. T tokens of all ranks, H hidden size, R width of the
// bottleneck.
#pragma once

#include <string>

#include "core/layers/row_exchange.h"
#include "core/layers/segment.h"

namespace megalith {

class ResidualAdapter : public Layer {
 public:
  struct Spec {
    std::string name;
    std::int64_t hidden = 0;
    std::int64_t rank = 0;  // R, divisible by the number of ranks
    float init_std = 0.02f;
    bool pins_input = false;  // the kept input stays on the device
  };

  ResidualAdapter(ParameterStore& store, const Spec& spec, RowExchange& rows);  // `rows` outlives the layer

  // [T, H] to the same; with sequence parallelism a rank has its [T / P, H] of both.
  Tensor forward(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const override;
  Tensor backward_data(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const override;
  void backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const override;

  using Layer::backward_data;
  using Layer::forward;

 private:
  enum Slot { kInput, kHidden, kActivated, kHiddenGradient, kOutputGradient };

  Tensor activated(const Context& ctx, const Tensor& hidden) const;

  std::string name_;
  bool pins_input_;
  RowExchange& rows_;
  Parameter& down_;  // A: [R / P, H]
  Parameter& up_;    // B: [H, R / P], starts at zero so that the layer starts as y = x
};

}  // namespace megalith

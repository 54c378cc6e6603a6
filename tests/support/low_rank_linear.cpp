#include "tests/support/low_rank_linear.h"

#include "core/layers/linear.h"
#include "core/ops/gemm/gemm.h"

namespace megalith {

LowRankLinear::LowRankLinear(ParameterStore& store, const Spec& spec)
    : a_(store.add({.parts = {spec.split.shared_between_linears(spec.name + ".a")},
                    .shape = {spec.inputs, spec.rank},
                    .init_std = spec.init_std})),
      b_(store.add({.parts = {spec.split.shared_between_linears(spec.name + ".b")},
                    .shape = {spec.rank, spec.outputs},
                    .initializer = Initializer::kZeros})) {}

Tensor LowRankLinear::forward(const Context& ctx, const Microbatch&, const Tensor& x, Stash& stash) const {
  stash[kInput] = x;
  stash[kHidden] = matmul(ctx, x, a_.weight);     // [T, R]
  return matmul(ctx, stash[kHidden], b_.weight);  // [T, O]
}

Tensor LowRankLinear::backward_data(const Context& ctx, const Microbatch&, const Tensor& dy, Stash& stash) const {
  stash[kOutputGradient] = dy;
  stash[kHiddenGradient] = matmul(ctx, dy, b_.weight, false, true);
  return matmul(ctx, stash[kHiddenGradient], a_.weight, false, true);
}

void LowRankLinear::backward_weight(const Context& ctx, const Microbatch&, Stash& stash) const {
  launch(
      ctx,
      Gemm{
          .a = stash[kInput], .b = stash[kHiddenGradient], .c = a_.main_grad, .transpose_a = true, .accumulate = true});
  launch(ctx, Gemm{.a = stash[kHidden],
                   .b = stash[kOutputGradient],
                   .c = b_.main_grad,
                   .transpose_a = true,
                   .accumulate = true});
}

}  // namespace megalith

#include "moe/merge.h"

#include "core/layers/row_sums.h"
#include "core/ops/activation.h"
#include "core/ops/elementwise.h"
#include "core/ops/route_rows.h"
#include "moe/routed.h"

namespace megalith {

Tensor Merge::forward_shared(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const {
  const Tensor h = shared_.fc1->forward(ctx, mb, x, stash.child(kFc1));
  const Tensor y = ctx.empty({h.size(0), h.size(1) / 2}, h.dtype, "shared expert's activation");
  launch(ctx.compute, SwigluForward{.x = h, .y = y});
  stash.save(kPreActivation, SlotKind::kAct, h);
  return shared_.fc2->forward(ctx, mb, y, stash.child(kFc2));
}

TensorList Merge::forward(const Context& ctx, const Microbatch& mb, const TensorList& inputs, Stash& stash) const {
  const Tensor& residual = inputs[kMergeResidual];
  const Tensor hidden = ctx.empty(residual.shape, residual.dtype, "merged rows");
  launch(ctx.compute, UnpermuteRows{.x = inputs[kRows], .position = inputs[kMergePosition], .y = hidden});
  if (shared_.fc1) {
    const Tensor& x = inputs[kSharedInput];
    Stash dropped;
    if (shared_.recompute) stash[kInput] = x;
    const Tensor shared = forward_shared(ctx, mb, x, shared_.recompute ? dropped : stash);
    launch(ctx.compute, Add{.a = hidden, .b = shared, .y = hidden});
  }
  return {apply_dropout(ctx, mb, dropout_, hidden), residual};
}

Tensor Merge::backward_shared(const Context& ctx, const Microbatch& mb, const Tensor& dy, Stash& stash) const {
  if (shared_.recompute) stash[kPreActivation] = shared_.fc1->forward(ctx, mb, stash[kInput], stash.child(kFc1));
  const Tensor& h = stash.at(kPreActivation, "shared expert's fc1 output");
  Stash& fc2 = stash.child(kFc2);
  const Tensor d_activation = shared_.fc2->backward_data(ctx, mb, dy, fc2);
  const bool refills = !fc2.has(Linear::kInput);
  if (refills) fc2.refill(Linear::kInput, d_activation);  // which it becomes on the way
  const Tensor dh = ctx.empty(h.shape, h.dtype, "activation gradient");
  launch(ctx.compute, SwigluBackward{.x = h, .dy = d_activation, .dx = dh, .y = refills ? d_activation : Tensor{}});
  return shared_.fc1->backward_data(ctx, mb, dh, stash.child(kFc1));
}

TensorList Merge::backward_data(const Context& ctx, const Microbatch& mb, const TensorList& output_gradients,
                                Stash& stash) const {
  const Tensor d_hidden = apply_dropout(ctx, mb, dropout_, output_gradients[0]);
  TensorList gradients{d_hidden, output_gradients[1], {}};
  if (shared_.fc1) gradients.push_back(backward_shared(ctx, mb, d_hidden, stash));
  return gradients;
}

void Merge::backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  if (!shared_.fc1) return;
  RowSums sums(ctx);
  shared_.fc2->backward_weight(sums.later(), mb, stash.child(kFc2));
  shared_.fc1->backward_weight(sums.later(), mb, stash.child(kFc1));
  sums.add();
}

}  // namespace megalith

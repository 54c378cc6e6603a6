#include "moe/merge.h"

#include "core/layers/row_sums.h"
#include "core/ops/activation.h"
#include "core/ops/elementwise.h"
#include "core/ops/grouped_gemm.h"
#include "core/ops/route_rows.h"
#include "core/ops/router.h"
#include "moe/routed.h"

namespace megalith {

void Merge::forward_gate(const Context& ctx, const Tensor& x, Stash& gate) const {
  const Shape own{x.size(0), 1}, whole{rows_.whole_rows(x.size(0)), 1};
  gate[kLogits] = ctx.empty(own, DType::kFp32, "gate logits");
  gate[kChoice] = ctx.empty(own, DType::kInt32, "gate choices");
  gate[kWeight] = ctx.empty(own, DType::kFp32, "gate weights");
  launch(ctx, Gemm{.a = x, .b = shared_.gate->weight, .c = gate[kLogits], .transpose_b = true});
  launch(
      ctx.compute,
      RouterTopk{
          .logits = gate[kLogits], .choice = gate[kChoice], .weight = gate[kWeight], .score = RouterScore::kSigmoid});
  gate[kRowWeight] = rows_.gather_rows(ctx, gate[kWeight], "gate weights");
  // All rows are the one expert's, in their order.
  const Tensor choice = ctx.empty(whole, DType::kInt32, "gate choices");
  gate[kOffsets] = ctx.empty({2}, DType::kInt32, "gate offsets");
  gate[kPosition] = ctx.empty(whole, DType::kInt32, "gate rows");
  launch(ctx.compute, Fill{.x = choice, .value = 0});
  launch(ctx, ExpertOffsets{.choice = choice,
                            .offsets = gate[kOffsets],
                            .token = ctx.empty({whole[0]}, DType::kInt32, "gate tokens"),
                            .position = gate[kPosition],
                            .all_experts = 1});
}

void Merge::backward_gate(const Context& ctx, const Tensor& partial, const Tensor& dx, Stash& gate) const {
  const Tensor d_whole = ctx.empty(gate[kPosition].shape, DType::kFp32, "gate weights gradient");
  launch(ctx.compute, UnpermuteWeightGradients{.partial = partial, .position = gate[kPosition], .d_weight = d_whole});
  const Tensor d_weight = rows_.sum_rows(ctx, d_whole, "gate weights gradient");  // each rank has a part of F
  const Tensor d_logits = ctx.empty(gate[kLogits].shape, DType::kFp32, "gate logits gradient");
  launch(ctx.compute, RouterTopkBackward{.logits = gate[kLogits],
                                         .choice = gate[kChoice],
                                         .weight = gate[kWeight],
                                         .d_weight = d_weight,
                                         .d_logits = d_logits,
                                         .score = RouterScore::kSigmoid});
  gate[kLogitsGradient] = d_logits;
  if (d_logits.dtype != dx.dtype) {
    gate[kLogitsGradient] = ctx.empty(d_logits.shape, dx.dtype, "gate logits gradient");
    launch(ctx.compute, CastRows{.x = d_logits, .y = gate[kLogitsGradient]});
  }
  launch(ctx, Gemm{.a = gate[kLogitsGradient], .b = shared_.gate->weight, .c = dx, .accumulate = true});
}

void Merge::begin_shared(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const {
  if (shared_.gate != nullptr) forward_gate(ctx, x, stash.child(kGate));
  stash.save(kPreActivation, SlotKind::kAct, shared_.fc1->forward(ctx, mb, x, stash.child(kFc1)));
}

Tensor Merge::forward_shared(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const {
  begin_shared(ctx, mb, x, stash);
  const Tensor h = stash.at(kPreActivation, "shared expert's fc1 output");
  const Tensor y = ctx.empty({h.size(0), h.size(1) / 2}, h.dtype, "shared expert's activation");
  if (shared_.gate == nullptr) {
    launch(ctx.compute, SwigluForward{.x = h, .y = y});
  } else {
    Stash& gate = stash.child(kGate);
    const Tensor row_weight = gate[kRowWeight].view({h.size(0)});
    launch(ctx.compute, RoutedSwigluForward{.x = h, .row_weight = row_weight, .offsets = gate[kOffsets], .y = y});
  }
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
  if (shared_.recompute) begin_shared(ctx, mb, stash[kInput], stash);
  const Tensor& h = stash.at(kPreActivation, "shared expert's fc1 output");
  Stash &fc2 = stash.child(kFc2), &gate = stash.child(kGate);
  const Tensor d_activation = shared_.fc2->backward_data(ctx, mb, dy, fc2);
  const bool refills = !fc2.has(Linear::kInput);
  if (refills) fc2.refill(Linear::kInput, d_activation);  // which it becomes on the way
  const Tensor dh = ctx.empty(h.shape, h.dtype, "activation gradient");
  if (shared_.gate == nullptr) {
    launch(ctx.compute, SwigluBackward{.x = h, .dy = d_activation, .dx = dh, .y = refills ? d_activation : Tensor{}});
    return shared_.fc1->backward_data(ctx, mb, dh, stash.child(kFc1));
  }
  const std::int64_t rows = h.size(0), partials = (h.size(1) / 2 + kPartialColumns - 1) / kPartialColumns;
  const Tensor partial = ctx.empty({rows, partials}, DType::kFp32, "gate weights gradient");
  launch(ctx.compute, RoutedSwigluBackward{.x = h,
                                           .dy = d_activation,
                                           .row_weight = gate[kRowWeight].view({rows}),
                                           .offsets = gate[kOffsets],
                                           .dx = dh,
                                           .y = d_activation,
                                           .d_row_weight_partial = partial});
  const Tensor dx = shared_.fc1->backward_data(ctx, mb, dh, stash.child(kFc1));
  backward_gate(ctx, partial, dx, gate);
  return dx;
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
  if (shared_.gate != nullptr) {
    const Tensor x = stash.child(kFc1).at(Linear::kInput, "shared expert's input");
    accumulate_linear_gradient(ctx, x, stash.child(kGate)[kLogitsGradient], *shared_.gate, nullptr);
  }
  RowSums sums(ctx);
  shared_.fc2->backward_weight(sums.later(), mb, stash.child(kFc2));
  shared_.fc1->backward_weight(sums.later(), mb, stash.child(kFc1));
  sums.add();
}

}  // namespace megalith

#include "moe/shared_expert.h"

#include "core/ops/elementwise/elementwise.h"
#include "moe/activation.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"
#include "moe/ops/route_rows.h"
#include "moe/ops/router.h"

namespace megalith {

void SharedExpert::open_gate(const Context& ctx, Opened& opened, Stash& gate) const {
  const Tensor& x = opened.x;
  const Shape own{x.size(0), 1}, whole{rows_.whole_rows(x.size(0)), 1};
  gate[kLogits] = ctx.empty(own, DType::kFp32, "gate logits");
  gate[kChoice] = ctx.empty(own, DType::kInt32, "gate choices");
  gate[kWeight] = ctx.empty(own, DType::kFp32, "gate weights");
  launch(ctx, Gemm{.a = x, .b = parts_.gate->weight, .c = gate[kLogits], .transpose_b = true});
  launch(
      ctx.compute,
      RouterTopk{
          .logits = gate[kLogits], .choice = gate[kChoice], .weight = gate[kWeight], .score = RouterScore::kSigmoid});
  opened.row_weight = rows_.gather_rows(ctx, gate[kWeight], "gate weights").view({whole[0]});
  // All rows belong to one expert, in order.
  const Tensor choice = ctx.empty(whole, DType::kInt32, "gate choices");
  opened.offsets = ctx.empty({2}, DType::kInt32, "gate offsets");
  gate[kPosition] = ctx.empty(whole, DType::kInt32, "gate rows");
  launch(ctx.compute, Fill{.x = choice, .value = 0});
  launch(ctx, ExpertOffsets{.choice = choice,
                            .offsets = opened.offsets,
                            .token = ctx.empty({whole[0]}, DType::kInt32, "gate tokens"),
                            .position = gate[kPosition],
                            .all_experts = 1});
}

void SharedExpert::open_gate_backward(const Context& ctx, const Tensor& partial, const Tensor& dx, Stash& gate) const {
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
  launch(ctx, Gemm{.a = gate[kLogitsGradient], .b = parts_.gate->weight, .c = dx, .accumulate = true});
}

std::int64_t SharedExpert::columns_of(const Tensor& h) const {
  return parts_.activation == Activation::kSwiglu ? h.size(1) / 2 : h.size(1);
}

SharedExpert::Opened SharedExpert::open(const Context& ctx, const Microbatch& mb, const Tensor& x, Stash& stash) const {
  Opened opened{.x = x};
  if (has_gate()) open_gate(ctx, opened, stash.child(kGate));
  opened.h = parts_.fc1->forward(ctx, mb, x, stash.child(kFc1));
  return opened;
}

Tensor SharedExpert::close(const Context& ctx, const Microbatch& mb, const Opened& opened, Stash& stash) const {
  const Tensor& h = opened.h;
  const Tensor y = ctx.empty({h.size(0), columns_of(h)}, h.dtype, "shared expert's activation");
  if (has_gate()) {
    stash[kRowWeight] = opened.row_weight;
    stash[kOffsets] = opened.offsets;
    launch_routed_activation(ctx, parts_.activation,
                             {.x = h, .row_weight = opened.row_weight, .offsets = opened.offsets, .y = y});
  } else {
    launch_activation(ctx, parts_.activation, h, y);
  }
  if (parts_.recompute) {
    Stash dropped;
    stash.save(kInput, SlotKind::kExpertFc1, opened.x);
    return parts_.fc2->forward(ctx, mb, y, dropped);
  }
  stash.save(kPreActivation, SlotKind::kAct, h);
  return parts_.fc2->forward(ctx, mb, y, stash.child(kFc2));
}

SharedExpert::OpenedGradient SharedExpert::close_backward_data(const Context& ctx, const Microbatch& mb,
                                                               const Tensor& dy, Stash& stash) const {
  if (parts_.recompute) {
    Stash dropped;
    stash[kPreActivation] = parts_.fc1->forward(ctx, mb, stash.at(kInput, "shared expert's input"), dropped);
  }
  const Tensor& h = stash.at(kPreActivation, "shared expert's fc1 output");
  Stash& fc2 = stash.child(kFc2);
  const Tensor d_activation = parts_.fc2->backward_data(ctx, mb, dy, fc2);
  const bool refills = !fc2.has(Linear::kInput);
  if (refills) fc2.refill(Linear::kInput, d_activation);  // overwritten with the activation below
  OpenedGradient gradient{.dh = ctx.empty(h.shape, h.dtype, "activation gradient")};
  if (!has_gate()) {
    launch_activation_backward(ctx, parts_.activation, h, d_activation, gradient.dh, refills ? d_activation : Tensor{});
    return gradient;
  }
  const std::int64_t rows = h.size(0), partials = (columns_of(h) + kPartialColumns - 1) / kPartialColumns;
  gradient.partial = ctx.empty({rows, partials}, DType::kFp32, "gate weights gradient");
  launch_routed_activation_backward(ctx, parts_.activation,
                                    {.x = h,
                                     .dy = d_activation,
                                     .row_weight = stash[kRowWeight],
                                     .offsets = stash[kOffsets],
                                     .dx = gradient.dh,
                                     .y = d_activation,
                                     .d_row_weight_partial = gradient.partial});
  return gradient;
}

Tensor SharedExpert::open_backward_data(const Context& ctx, const Microbatch& mb, const OpenedGradient& gradient,
                                        Stash& stash) const {
  const Tensor dx = parts_.fc1->backward_data(ctx, mb, gradient.dh, stash.child(kFc1));
  if (has_gate()) open_gate_backward(ctx, gradient.partial, dx, stash.child(kGate));
  return dx;
}

void SharedExpert::close_backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  parts_.fc2->backward_weight(ctx, mb, stash.child(kFc2));
}

void SharedExpert::open_backward_weight(const Context& ctx, const Microbatch& mb, Stash& stash) const {
  if (has_gate()) {
    const Tensor x = stash.child(kFc1).at(Linear::kInput, "shared expert's input");
    accumulate_linear_gradient(ctx, x, stash.child(kGate)[kLogitsGradient], *parts_.gate, nullptr);
  }
  parts_.fc1->backward_weight(ctx, mb, stash.child(kFc1));
}

}  // namespace megalith

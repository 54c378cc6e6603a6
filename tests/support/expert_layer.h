// A layer of experts as the ops that it consists of and the tensors between them: for benches and tests.
//   T: tokens, d: hidden size, F: FFN size of an expert, E: experts, K: choices a token, R = T K routed rows
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device/stream.h"
#include "core/instruments/timeline.h"
#include "core/memory/arena.h"
#include "core/ops/op.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"
#include "moe/ops/route_rows.h"
#include "moe/ops/router.h"

namespace megalith::test {

struct ExpertSizes {
  std::int64_t tokens, hidden, ffn, experts, choices;
};

struct ExpertLayer {
  // Live as long as the model; the caller fills them.
  Tensor gate, up, down;        // [E F, d] twice, [E d, F]
  Tensor d_gate, d_up, d_down;  // fp32
  // Kept for backward, with x.
  Tensor choice, weight, offsets, token, position, row_weight, h;
  // Inputs and outputs; the caller fills the first three.
  Tensor x, logits, d_out, out, dx, d_logits;
  // Temporary in one pass.
  Tensor act, rows, dh, partial, d_weight, workspace;

  // make(shape, dtype) gives a tensor's memory.
  template <class Make>
  ExpertLayer(const ExpertSizes& s, Make&& make) : ExpertLayer(s, make, make) {}
  template <class MakeWeight, class Make>
  ExpertLayer(const ExpertSizes& s, MakeWeight&& make_weight, Make&& make) {
    const std::int64_t t = s.tokens, r = t * s.choices, e = s.experts;
    constexpr DType kBf16 = DType::kBf16, kFp32 = DType::kFp32, kInt32 = DType::kInt32;
    const Shape wide = {e * s.ffn, s.hidden}, high = {e * s.hidden, s.ffn}, tokens = {t, s.hidden};
    gate = make_weight(wide, kBf16), up = make_weight(wide, kBf16), down = make_weight(high, kBf16);
    d_gate = make_weight(wide, kFp32), d_up = make_weight(wide, kFp32), d_down = make_weight(high, kFp32);
    logits = make(Shape{t, e}, kFp32), d_logits = make(Shape{t, e}, kFp32);
    choice = make(Shape{t, s.choices}, kInt32), position = make(Shape{t, s.choices}, kInt32);
    weight = make(Shape{t, s.choices}, kFp32), d_weight = make(Shape{t, s.choices}, kFp32);
    offsets = make(Shape{e + 1}, kInt32), token = make(Shape{r}, kInt32), row_weight = make(Shape{r}, kFp32);
    x = make(tokens, kBf16), out = make(tokens, kBf16), d_out = make(tokens, kBf16), dx = make(tokens, kBf16);
    h = make(Shape{r, 2 * s.ffn}, kBf16), dh = make(Shape{r, 2 * s.ffn}, kBf16);
    act = make(Shape{r, s.ffn}, kBf16), rows = make(Shape{r, s.hidden}, kBf16);
    partial = make(Shape{r, (s.ffn + kPartialColumns - 1) / kPartialColumns}, kFp32);
    const auto bytes = static_cast<std::int64_t>(workspace_bytes(sort(), DeviceType::kCuda));
    workspace = make(Shape{bytes}, DType::kUint8);
  }

  RouterTopk router() const { return {.logits = logits, .choice = choice, .weight = weight}; }
  ExpertOffsets sort() const {
    return {.choice = choice, .offsets = offsets, .token = token, .position = position, .workspace = workspace};
  }
  PermuteWeights weights() const { return {.weight = weight, .position = position, .row_weight = row_weight}; }
  GroupedGemmSwiglu fc1() const {
    return {
        .a = x, .index = token, .offsets = offsets, .gate = gate, .up = up, .row_weight = row_weight, .h = h, .y = act};
  }
  GroupedGemm fc2() const { return {.a = act, .offsets = offsets, .b = down, .c = rows}; }
  UnpermuteRows combine(const Tensor& to) const { return {.x = rows, .position = position, .y = to}; }

  GroupedGemmSwigluBackward fc2_dgrad() const {
    return {.dy = d_out,
            .index = token,
            .offsets = offsets,
            .b = down,
            .h = h,
            .row_weight = row_weight,
            .dh = dh,
            .y = act,
            .d_row_weight_partial = partial};
  }
  UnpermuteWeightGradients weights_backward() const {
    return {.partial = partial, .position = position, .d_weight = d_weight};
  }
  RouterTopkBackward router_backward() const {
    return {.choice = choice, .weight = weight, .d_weight = d_weight, .d_logits = d_logits};
  }
  GroupedGemmWgrad fc2_wgrad() const {
    return {.a = d_out, .a_index = token, .b = act, .offsets = offsets, .c = d_down};
  }
  GroupedGemm fc1_dgrad() const {
    return {.a = dh, .offsets = offsets, .b = gate, .b2 = up, .c = rows, .transpose_b = false};
  }
  GroupedGemmWgrad fc1_wgrad() const {
    return {.a = dh, .b = x, .b_index = token, .offsets = offsets, .c = d_gate, .c2 = d_up};
  }

  // launch(op) for each op of a pass.
  template <class Launch>
  void forward(const Launch& launch) const {
    launch(router());
    launch(sort());
    launch(weights());
    launch(fc1());
    launch(fc2());
    launch(combine(out));
  }
  template <class Launch>
  void backward(const Launch& launch) const {
    launch(fc2_dgrad());
    launch(weights_backward());
    launch(router_backward());
    launch(fc2_wgrad());
    launch(fc1_dgrad());
    launch(fc1_wgrad());
    launch(combine(dx));
  }
};

// Bytes of all tensors of a layer except its weights and their gradients: also of x, d_out, out and dx. Each tensor
// lives from the first op that touches it to the last one. In the backward act and rows are other tensors, and dh
// reuses h's memory.
struct LayerMemory {
  std::size_t kept;  // touched by an op of the forward and one of the backward
  std::size_t peak;  // arena block for tensors that live at the same time
};

// Models the trainer's memory: the ops are recorded, and the arena lays out the tensors that they touch.
inline LayerMemory memory_of(const ExpertSizes& sizes) {
  Timeline timeline;
  Stream stream(DeviceType::kPlan, "compute", {.timeline = &timeline});
  MemoryPool pool(DeviceType::kPlan);
  Arena arena(pool, Arena::Mode::kRecording);
  arena.begin_scope({});
  const auto bytes = [](const Shape& shape, DType dtype) {
    return static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  };
  const auto make_weight = [&](const Shape& shape, DType dtype) {
    return Tensor(pool.allocate(bytes(shape, dtype), MemoryCategory::kParameters, "test"), dtype, shape);
  };
  const auto make = [&](const Shape& shape, DType dtype) {
    return Tensor(arena.allocate(bytes(shape, dtype), MemoryCategory::kActivations, "test"), dtype, shape);
  };
  const auto enqueue = [&](const auto& op) { launch(stream, op); };
  ExpertLayer layer(sizes, make_weight, make);
  layer.forward(enqueue);
  const std::size_t ops_forward = timeline.entries().size();
  layer.dh = layer.h;
  for (Tensor* of_a_pass : {&layer.act, &layer.rows}) *of_a_pass = make(of_a_pass->shape, of_a_pass->dtype);
  layer.backward(enqueue);

  std::vector<unsigned> passes(arena.recorded().size() + 1);  // the last one: memory outside the arena
  for (std::size_t i = 0; i < timeline.entries().size(); ++i) {
    for (const AccessRange& range : timeline.entries()[i].access.ranges())
      passes[arena.index_recorded(range.begin)] |= i < ops_forward ? 1u : 2u;
  }
  LayerMemory memory{.kept = 0, .peak = plan_arena(timeline, arena).peak_bytes};
  for (std::size_t i = 0; i < arena.recorded().size(); ++i)
    memory.kept += passes[i] == 3 ? arena.recorded()[i].bytes : 0;
  return memory;
}

}  // namespace megalith::test

// Of a step: what the ranks count of experts and routers, and what follows from it.
#include "apps/run/step.h"
#include "core/device/copy.h"
#include "core/ops/elementwise/elementwise.h"
#include "moe/ops/expert_bias.h"

namespace megalith {

// Of the rows of the tensor-parallel ranks. Rows that stay on their rank are not sent.
void Step::sum_of_experts() {
  constexpr std::int64_t kFirst = index_of(StepSum::kAuxLoss);
  Stream& compute = rank_.streams.compute;
  const Tensor& sums = rank_.step.sums;
  rank_.layers.tensor.sum(compute, sums.slice(0, kFirst, sums.numel() - kFirst), "losses of routers");
  if (const Tensor& sent = rank_.step.rows_sent)
    launch(compute, Fill{.x = sent.slice(1, rank_.mesh.dispatch().rank(), 1), .value = 0});
  rank_.layers.tensor.sum(compute, rank_.step.counts, "rows of experts");
  if (rank_.step.room_needed) rank_.layers.tensor.maximum(compute, rank_.step.room_needed, "room");
}

RowRoom Step::row_room() const {
  const ExpertRoom room = plans_ == nullptr ? ExpertRoom{} : plans_->room;
  return {.needed = rank_.step.room_needed, .arrived = room.arrived, .rows = room.rows};
}

void Step::copy_room(Stream& compute, const Tensor& needed, StagedStep& step) {
  if (needed) copy_to_host(compute, step.room_needed, needed.data, needed.bytes());
}

// This stage's layers have their biases one after the other, and their counts among those of the whole model.
void Step::update_expert_biases() {
  const ModelConfig& model = rank_.options.model;
  const MoeConfig& moe = rank_.options.moe();
  if (!moe.router_enable_expert_bias) return;
  const Tensor& biases = rank_.model.gpt.parameters->buffer_values();
  std::int64_t done = 0;
  for (const GptPart& part : rank_.model.parts) {
    const std::int64_t first = moe_layers_before(model, part.first_layer);
    const std::int64_t layers = moe_layers_before(model, part.first_layer + part.num_layers) - first;
    if (layers == 0) continue;
    const std::int64_t experts = moe.num_experts;
    launch(rank_.streams.compute,
           UpdateExpertBias{.counts = rank_.step.expert_counts.slice(0, first, layers),
                            .bias = biases.slice(0, done * experts, layers * experts).view({layers, experts}),
                            .rate = static_cast<float>(moe.router_bias_update_rate),
                            .parameters = rank_.step.parameters});
    done += layers;
  }
}

}  // namespace megalith

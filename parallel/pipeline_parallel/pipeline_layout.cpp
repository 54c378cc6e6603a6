#include "parallel/pipeline_parallel/pipeline_layout.h"

#include <utility>

namespace megalith {

std::vector<GptPart> PipelineLayout::parts_of(int stage) const {
  std::vector<GptPart> mine;
  for (int chunk = 0; chunk < placement.num_chunks; ++chunk) {
    const PartLayers& part = parts[static_cast<std::size_t>(placement.part({.stage = stage, .chunk = chunk}))];
    mine.push_back({.first_layer = part.first_layer,
                    .num_layers = part.num_layers,
                    .has_embedding = part.has_embedding,
                    .has_head = part.has_loss});
  }
  return mine;
}

bool PipelineLayout::splits_backward() const {
  return delays_weights || overlaps_exchanges || kind == ScheduleKind::kZbH1 || is_v_shaped(kind);
}

Schedule schedule_of(const PipelineLayout& layout, std::int64_t num_microbatches) {
  const auto [stages, chunks] = std::pair(layout.placement.num_stages, layout.placement.num_chunks);
  const int microbatches = static_cast<int>(num_microbatches);
  const int group = layout.microbatch_group;
  if (layout.overlaps_exchanges) return pair_microbatches(layout.kind, stages, chunks, microbatches, group);
  Schedule schedule = make_schedule(layout.kind, stages, chunks, microbatches, 0, group);
  return layout.delays_weights ? delay_weights(std::move(schedule)) : schedule;
}

}  // namespace megalith

// Layers of each pipeline stage, and the order in which stages run.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/gpt_part.h"
#include "parallel/pipeline_parallel/layer_layout.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

struct PipelineLayout {
  ScheduleKind kind = ScheduleKind::k1F1B;
  Placement placement;
  LayerLayout parts;         // in the model's order
  int microbatch_group = 0;  // see make_schedule
  bool delays_weights = false;
  bool overlaps_exchanges = false;  // of experts' rows (pair_microbatches)

  // Microbatches after which a step's order repeats, at most.
  int round() const { return microbatch_group == 0 ? placement.num_stages : microbatch_group; }
  // True if a chunk's backward_weight may run long after its backward_data, instead of segment by segment with it.
  bool splits_backward() const;

  // Parts of a stage, by chunk.
  std::vector<GptPart> parts_of(int stage) const;
};

// Schedule of a step; exit code 2 if it does not support the number of microbatches.
Schedule schedule_of(const PipelineLayout& layout, std::int64_t num_microbatches);

}  // namespace megalith

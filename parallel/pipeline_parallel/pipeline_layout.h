// Which layers each stage of a pipeline holds, and in which order the stages work.
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
  LayerLayout parts;  // in the model's order
  bool delays_weights = false;

  // Whether a chunk's backward_weight may come long after its backward_data, rather than segment by segment with it.
  bool weights_apart() const;

  // The parts of a stage, chunk after chunk.
  std::vector<GptPart> parts_of(int stage) const;
};

// The schedule of a step; exit code 2 where the number of microbatches does not suit it.
Schedule schedule_of(const PipelineLayout& layout, std::int64_t num_microbatches);

}  // namespace megalith

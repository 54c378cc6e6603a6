// What the flags say of the pipeline: which layers each stage holds, and in which order the stages work.
#pragma once

#include <string>
#include <vector>

#include "core/model/gpt_part.h"
#include "parallel/mesh/mesh_sizes.h"
#include "parallel/pipeline_parallel/layer_layout.h"
#include "parallel/pipeline_parallel/schedule.h"

namespace megalith {

struct Options;
struct ParallelOptions;

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

// Sizes that do not divide, and flags that contradict each other, are an error with exit code 2 that names flags and
// fitting values.
PipelineLayout pipeline_layout(const Options& options);

// The schedule of a step; exit code 2 where the number of microbatches does not suit it.
Schedule schedule_of(const PipelineLayout& layout, std::int64_t num_microbatches);

// The mesh of a world of this many ranks; exit code 2 where its size does not divide.
MeshSizes mesh_sizes_of(const ParallelOptions& parallel, int world);

}  // namespace megalith

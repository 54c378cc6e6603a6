// What the flags say of the pipeline: which layers each stage holds, and in which order the stages work.
#pragma once

#include "parallel/mesh/mesh_sizes.h"
#include "parallel/pipeline_parallel/pipeline_layout.h"

namespace megalith {

struct Options;
struct ParallelOptions;

// Sizes that do not divide, and flags that contradict each other, are an error with exit code 2 that names flags and
// fitting values.
PipelineLayout pipeline_layout(const Options& options);

// The mesh of a world of this many ranks; exit code 2 where its size does not divide.
MeshSizes mesh_sizes_of(const ParallelOptions& parallel, int world);

}  // namespace megalith

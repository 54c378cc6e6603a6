// Layers of each pipeline stage, and the order of its work, by the flags.
#pragma once

#include "parallel/mesh/mesh_sizes.h"
#include "parallel/pipeline_parallel/pipeline_layout.h"

namespace megalith {

struct Options;
struct ParallelOptions;

// Layout of the pipeline. Sizes that do not divide and contradicting flags have exit code 2; the error reports fitting
// values.
PipelineLayout pipeline_layout(const Options& options);

// Mesh of a world of `world` ranks; exit code 2 if its size does not divide.
MeshSizes mesh_sizes_of(const ParallelOptions& parallel, int world);

}  // namespace megalith

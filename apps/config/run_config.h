// Derived configuration of complete options in a world of a given size: the mesh, layers and schedule, and the sizes of
// a step.
#pragma once

#include <cstdint>

#include "apps/config/pipeline_options.h"
#include "parallel/mesh/mesh_sizes.h"

namespace megalith {

struct Options;
struct TrainingOptions;

struct RunConfig {
  MeshSizes mesh;
  PipelineLayout pipeline;
  std::int64_t microbatches = 0;  // M, per training step and rank; with --rampup-batch-size of the current stage
  std::int64_t evaluation_microbatches = 0;  // per evaluation, which always uses --global-batch-size
  std::int64_t sequences = 0;                // B, per microbatch
  std::int64_t seq_length = 0;               // S, tokens of a sequence

  std::int64_t rank_length() const { return seq_length / mesh.cp; }         // tokens of a sequence on a rank
  std::int64_t rank_tokens() const { return sequences * rank_length(); }    // per microbatch
  std::int64_t step_sequences() const { return microbatches * sequences; }  // per rank
  std::int64_t step_tokens() const { return step_sequences() * mesh.dp * seq_length; }
  std::int64_t evaluation_tokens() const { return evaluation_microbatches * sequences * mesh.dp * seq_length; }
  Schedule schedule() const { return schedule_of(pipeline, microbatches); }
  Schedule evaluation_schedule() const { return schedule_of(pipeline, evaluation_microbatches); }
};

// Configuration whose training steps have the largest batch. Exit code 2 if sizes do not divide or exceed any machine's
// memory; the error reports flags and fitting values.
RunConfig run_config(const Options& options, int world);
// Fails with exit code 2 if the batch of a stage of --rampup-batch-size, or the largest, suits neither mesh nor
// schedule.
void check_stages(const TrainingOptions& train, const RunConfig& config);

}  // namespace megalith

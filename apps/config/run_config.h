// What complete options come to in a world of so many ranks, derived once: who is where, which layers and in which
// order, and the sizes of a step.
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
  std::int64_t microbatches = 0;  // M, per training step and rank; under --rampup-batch-size of the current stage
  std::int64_t evaluation_microbatches = 0;  // likewise of an evaluation, which always takes --global-batch-size
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

// Its training steps are those of the largest batch. Exit code 2, naming the flags and values that would do, where
// sizes do not divide or no machine has memory for them.
RunConfig run_config(const Options& options, int world);
// Exit code 2 where the batch of a stage of --rampup-batch-size, or the largest one, suits neither mesh nor schedule.
void check_stages(const TrainingOptions& train, const RunConfig& config);

}  // namespace megalith

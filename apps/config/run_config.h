// Derived configuration of complete options in a world of a given size: the mesh, layers and schedule, and the sizes of
// a step.
#pragma once

#include <cstdint>

#include "apps/config/pipeline_options.h"
#include "parallel/mesh/mesh_sizes.h"

namespace megalith {

struct Options;
struct TrainingOptions;

// Documents and masks of samples (core/data/sample_marks.h); without any of them steps have no marks.
struct MarkedSamples {
  std::int64_t documents = 0;       // maximum per sample; attention separates them; 0: it does not
  bool restarts_positions = false;  // in each document
  bool masks_loss = false;          // some predictions do not count
  bool pads = false;                // rows may be padding, which routers leave out
  double pairs = 0;                 // mean over samples of the sum of the documents' squared lengths; 0: unknown

  bool any() const { return documents > 0 || restarts_positions || masks_loss || pads; }
  bool has_positions() const { return restarts_positions || pads; }
};

struct RunConfig {
  MeshSizes mesh;
  PipelineLayout pipeline;
  std::int64_t microbatches = 0;  // M, per training step and rank; with --rampup-batch-size of the current stage
  std::int64_t evaluation_microbatches = 0;  // per evaluation, which always uses --global-batch-size
  std::int64_t sequences = 0;                // B, per microbatch
  std::int64_t seq_length = 0;               // S, tokens of a sequence
  MarkedSamples marks{};

  std::int64_t rank_length() const { return seq_length / mesh.cp; }         // tokens of a sequence on a rank
  std::int64_t documents() const { return sequences * marks.documents; }    // capacity per microbatch
  std::int64_t rank_tokens() const { return sequences * rank_length(); }    // per microbatch
  std::int64_t step_sequences() const { return microbatches * sequences; }  // per rank
  std::int64_t step_tokens() const { return step_sequences() * mesh.dp * seq_length; }
  std::int64_t evaluation_tokens() const { return evaluation_microbatches * sequences * mesh.dp * seq_length; }
  Schedule schedule() const { return schedule_of(pipeline, microbatches); }
  Schedule evaluation_schedule() const { return schedule_of(pipeline, evaluation_microbatches); }
};

// Marks by the flags; documents are those of --max-documents-per-sample, or 64 if they are not counted yet.
MarkedSamples marked_samples(const Options& options);

// Configuration whose training steps have the largest batch. Exit code 2 if sizes do not divide or exceed any machine's
// memory; the error reports flags and fitting values.
RunConfig run_config(const Options& options, int world);
// Fails with exit code 2 if the batch of a stage of --rampup-batch-size, or the largest, suits neither mesh nor
// schedule.
void check_stages(const TrainingOptions& train, const RunConfig& config);

}  // namespace megalith

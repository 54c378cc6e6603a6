// Transfer of a step between host and device: samples for the streams and the report of the streams. Pending steps use
// its pinned memory in turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/config/run_config.h"
#include "apps/run/step_clock.h"
#include "core/data/sample_marks.h"
#include "core/device/event.h"
#include "core/device/stream.h"
#include "core/layers/microbatch.h"
#include "core/memory/host_arena.h"
#include "core/ops/device_parameters.h"
#include "core/optim/lr_schedule.h"
#include "moe/expert_load.h"
#include "moe/expert_room.h"
#include "offload/stats.h"
#include "offload/transfer.h"
#include "parallel/context_parallel/document_parts.h"

namespace megalith {

struct Rank;

// Rows of samples by their marks.
struct SampleTokens {
  std::int64_t trained = 0;  // whose prediction counts
  std::int64_t tokens = 0;   // not padding
  std::int64_t pairs = 0;    // sum over documents of the squared length, padding included

  // `separates`: attention separates documents; otherwise a sample counts as one.
  void add(const SampleMarks& marks, bool separates);
  friend SampleTokens operator+(const SampleTokens& a, const SampleTokens& b) {
    return {.trained = a.trained + b.trained, .tokens = a.tokens + b.tokens, .pairs = a.pairs + b.pairs};
  }
};

// Input of M microbatches of B sequences of S tokens.
struct StepInput {
  std::int64_t iteration = 0;  // from 1
  StepRates rates;
  std::vector<std::int64_t> first_samples;  // [M] global index of this rank's first sequence, as one rank reads it
  std::span<const std::int32_t> tokens;     // [M, B, S + 1], unsplit sequences; labels are shifted by one
  std::span<const SampleMarks> marks;       // [M, B]; empty: all predictions count, and each sequence is one document
  SampleTokens of_batch;                    // of the global batch, with marks
  double imbalance = 1;                     // largest over mean `pairs` of the replicas
};

// Input without meaning, for a recording of a step.
struct BlankSamples {
  explicit BlankSamples(const RunConfig& config, float learning_rate = 0)
      : BlankSamples(config, learning_rate, config.microbatches) {}
  BlankSamples(const RunConfig& config, float learning_rate, std::int64_t microbatches);
  BlankSamples(const BlankSamples&) = delete;
  BlankSamples& operator=(const BlankSamples&) = delete;

  std::vector<std::int32_t> tokens;
  std::vector<SampleMarks> marks;  // one document a sample
  StepInput input;
};

// Host memory of one step for its streams. The host accesses it only ahead of enqueueing and after the report.
struct StagedStep {
  std::int32_t* tokens = nullptr;            // [M, T]: this rank's part of each sequence
  std::int32_t* labels = nullptr;            // [M, T]
  std::int32_t* positions = nullptr;         // [M, T]; this and the next two only with marks that need them
  std::int32_t* document_begins = nullptr;   // [M, C]: see DocumentRows
  std::int32_t* document_lengths = nullptr;  // [M, C]
  std::int32_t* shared_documents = nullptr;  // [M, C - 1, 4, B]: see Documents; with ranks that exchange keys
  StepParameters* report = nullptr;          // device to host
  float* sums = nullptr;                     // device to host, as are the next two
  std::int32_t* counts = nullptr;
  std::int32_t* room_needed = nullptr;  // [2]
  std::int64_t* moved_bytes = nullptr;  // [2]
  std::int64_t iteration = 0;
  StepRates rates;
  std::vector<std::int64_t> first_samples;        // [M]
  std::vector<float> loss_scales, router_scales;  // [M], see MicrobatchParameters
  SampleTokens of_batch;                          // of the global batch; without marks all rows
  double imbalance = 1;                           // see StepInput
  double enqueue_seconds = 0;
  // Bytes of offloaded activations, out and back, without those whose used size only the device knows.
  std::int64_t bytes_out = 0, bytes_back = 0;
  bool times_copies = false;
  StepClock clock;
  bool follows = false;  // enqueued while the previous step was pending
  Event begun{"step begin", true};
  Event reported{"step report", true};
};

// Numbers of a step's report in addition to StepParameters.
struct ReportSizes {
  std::size_t sums = 0, counts = 0;
};

class Staging {
 public:
  // Staging for steps of at most the microbatches of `config`.
  struct Form {
    SequencePart part;            // of a sequence on this rank
    SharedSample sample;          // one rank unless ranks exchange keys of documents
    bool per_token_loss = false;  // --calculate-per-token-loss
  };
  Staging(DeviceType device, const RunConfig& config, const Form& form, const ReportSizes& report);

  // Copies the input into the next place of the ring, whose step is no longer pending.
  void stage(Stream& compute, const StepInput& input);
  void drop_last() { --staged_; }  // drops an unfinished step
  StagedStep& ago(int steps);      // 0: the last step
  StagedStep& last() { return ago(0); }

 private:
  void announce(Stream& compute, const StagedStep& step, std::int64_t microbatches) const;
  void write_marks(const SampleMarks& marks, std::vector<std::int32_t>& labels,
                   std::vector<std::int32_t>& positions) const;
  void stage_documents(const StepInput& input, StagedStep& step) const;
  void stage_shared_documents(std::span<const DocumentExtent> documents, std::int64_t microbatch, std::int64_t sequence,
                              StagedStep& step) const;
  void set_scales(const StepInput& input, StagedStep& step) const;

  RunConfig config_;
  std::int64_t max_microbatches_;
  Form form_;
  HostArena arena_;
  std::vector<std::unique_ptr<StagedStep>> steps_;
  std::int64_t staged_ = 0;
};

struct StepResult {
  std::int64_t iteration = 0;
  float loss = 0;         // mean over the trained tokens of the global batch
  SampleTokens of_batch;  // this and the next as in StepInput
  double imbalance = 1;
  float grad_norm = 0;  // ahead of clipping
  // Losses of the routers without their coefficients, as means over microbatches and MoE layers; absent without such
  // losses.
  std::optional<float> load_balancing_loss, router_z_loss;
  std::vector<ExpertLoad> expert_loads;  // by MoE layer
  ExpertRoom room_needed;                // maximum over all ranks, layers and microbatches, with expert parallelism
  bool lacks_room = false;               // the capacity did not suffice: nothing was updated, all results are invalid
  bool skipped = false;                  // loss or gradients were not finite: nothing was updated
  std::int64_t adam_count = 0;
  std::optional<StepSplit> split;  // if the step was timed by --timing-log-level
  OffloadStats offload;            // bytes of this rank, and times if requested
  double enqueue_seconds = 0;      // of the host
  double grad_zeros = 0;           // as the next in StepParameters
  double params_norm = 0;
  double seconds = 0;  // from the end of the previous step if enqueued by then, or from its start
};

struct Evaluation {
  float loss = 0;            // mean over the trained tokens of the global batch
  std::int64_t trained = 0;  // tokens
  ExpertRoom room_needed;    // see StepResult
};

ReportSizes report_sizes(const Rank& rank);
// Enqueues a training step's report. `moved`: offloaded bytes ahead of the step.
void enqueue_report(Rank& rank, StagedStep& step, const ActivationTransfer::Stats& moved);
// Waits for the report; an evaluation's report is enqueued first. `previous`: the previous step.
StepResult read_report(Rank& rank, StagedStep& step, const StagedStep& previous);
Evaluation report_evaluation(Rank& rank, StagedStep& step);

}  // namespace megalith

// A step's way between host and device: the samples that the streams read, and the report that they write, in pinned
// memory used in turn by the steps that may be pending.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "apps/config/run_config.h"
#include "core/device/event.h"
#include "core/device/stream.h"
#include "core/layers/microbatch.h"
#include "core/memory/host_arena.h"
#include "core/ops/device_parameters.h"
#include "moe/expert_load.h"
#include "moe/expert_room.h"
#include "offload/stats.h"
#include "offload/transfer.h"

namespace megalith {

struct Rank;

// M microbatches of B sequences of S tokens.
struct StepInput {
  std::int64_t iteration = 0;  // from 1
  float learning_rate = 0;
  std::vector<std::int64_t> first_samples;  // [M] global index of this rank's first sequence
  std::span<const std::int32_t> tokens;     // [M, B, S + 1], whole sequences; labels are the same shifted by one
};

// Of no meaning, for who runs a step to see what it does.
struct BlankSamples {
  explicit BlankSamples(const RunConfig& config, float learning_rate = 0)
      : BlankSamples(config, learning_rate, config.microbatches) {}
  BlankSamples(const RunConfig& config, float learning_rate, std::int64_t microbatches);
  BlankSamples(const BlankSamples&) = delete;
  BlankSamples& operator=(const BlankSamples&) = delete;

  std::vector<std::int32_t> tokens;
  StepInput input;
};

// Host memory of one step that streams read and write; the host touches it only before the step is enqueued and after
// its report came.
struct StagedStep {
  std::int32_t* tokens = nullptr;    // [M, T]: this rank's part of each sequence
  std::int32_t* labels = nullptr;    // [M, T]
  StepParameters* report = nullptr;  // device to host
  float* sums = nullptr;             // likewise, as are the next
  std::int32_t* counts = nullptr;
  std::int32_t* room_needed = nullptr;  // [2]
  std::int64_t* moved_bytes = nullptr;  // [2]
  std::int64_t iteration = 0;
  float learning_rate = 0;
  std::vector<std::int64_t> first_samples;  // [M]
  double enqueue_seconds = 0;
  // Of kept activations, to the host and back, but for those of which the device knows how much is used.
  std::int64_t bytes_out = 0, bytes_back = 0;
  bool times_copies = false;
  bool follows = false;  // enqueued while the step before was still pending
  Event begun{"step begin", true};
  Event reported{"step report", true};
};

// How many numbers a step reports beside its StepParameters.
struct ReportSizes {
  std::size_t sums = 0, counts = 0;
};

class Staging {
 public:
  // For steps of at most as many microbatches as `config` has. `part`: of a sequence on this rank.
  Staging(DeviceType device, const RunConfig& config, const SequencePart& part, const ReportSizes& report);

  // Takes the next place in the ring, whose step is no longer pending, and copies the input into it.
  void stage(Stream& compute, const StepInput& input);
  void drop_last() { --staged_; }  // a step that was not run to its end
  StagedStep& ago(int steps);      // 0: the last
  StagedStep& last() { return ago(0); }

 private:
  RunConfig config_;
  std::int64_t most_microbatches_;
  SequencePart part_;
  HostArena arena_;
  std::vector<std::unique_ptr<StagedStep>> steps_;
  std::int64_t staged_ = 0;
};

struct StepResult {
  std::int64_t iteration = 0;
  float loss = 0;       // mean over the tokens of the global batch
  float grad_norm = 0;  // before clipping
  // Of the routers, without their coefficients: means over microbatches and layers of experts; absent without such
  // losses.
  std::optional<float> load_balancing_loss, router_z_loss;
  std::vector<ExpertLoad> expert_loads;  // of each layer of experts
  ExpertRoom room_needed;                // where ranks share out experts: of all ranks, layers and microbatches
  bool lacks_room = false;               // more than there was: nothing was updated, and nothing here means anything
  bool skipped = false;                  // loss or gradients were not finite: nothing was updated
  std::int64_t adam_count = 0;
  OffloadStats offload;        // bytes of this rank, and times where they were asked for
  double enqueue_seconds = 0;  // of the host
  double seconds = 0;          // from the end of the step before, if this one was enqueued by then, or from its start
};

struct Evaluation {
  float loss = 0;          // mean over the tokens of the global batch
  ExpertRoom room_needed;  // as StepResult's
};

ReportSizes report_sizes(const Rank& rank);
// Enqueues a training step's report. `moved`: what was offloaded before the step.
void enqueue_report(Rank& rank, StagedStep& step, const ActivationTransfer::Stats& moved);
// Wait for the report; an evaluation's is enqueued first. `previous`: the step before.
StepResult read_report(Rank& rank, StagedStep& step, const StagedStep& previous);
Evaluation report_evaluation(Rank& rank, StagedStep& step);

}  // namespace megalith

// Logs of a run on rank 0: the log line, --metrics-jsonl, --tensorboard-dir, --wandb-project, and the use of memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/metrics/metrics.h"
#include "apps/metrics/tensorboard.h"
#include "apps/metrics/wandb.h"
#include "apps/run/model_flops.h"
#include "apps/run/step.h"
#include "apps/summary/offload_report.h"
#include "apps/train/run_setup.h"
#include "graphs/graphed_runner.h"

namespace megalith {

class RunLog {
 public:
  // `setup` outlives the log. Ranks other than 0 write nothing.
  RunLog(const RunSetup& setup, int rank, int world);

  // Opens the files of a run that starts from `state`; a wrong path fails here, only on rank 0.
  void open(const TrainState& state);

  struct StepFacts {
    RunProgress before;                      // progress ahead of the step
    std::int64_t batch = 0;                  // samples of the step
    std::int64_t skipped_steps = 0;          // in the whole run
    std::optional<double> validation_loss;   // measured after the step
    std::optional<double> checkpoint_stall;  // seconds of the save ahead of the step
    std::int64_t regrows = 0;                // replans with more capacity for rows so far
    std::vector<StepSplit> splits = {};      // by rank, with --timing-log-level in steps with a log line
    std::vector<OffloadStats> offload = {};  // by rank, with offloaded activations
  };
  void step(const Rank& rank, const StepResult& result, const StepFacts& facts);
  // Logs an evaluation. `alone`: with --skip-train; otherwise the step's metrics have it.
  void evaluation(const char* split, const TrainState& state, double loss, bool alone);
  // Logs one line each, once: after the second step, and with graphs not ahead of their capture.
  void graphs(const std::vector<GraphedRunner::Stats>& ranks) const;
  void no_graphs() const;  // warns at the end of a run without requested graphs
  void memory(const Rank& rank, std::size_t checkpoint_staging) const;
  void finish(ExitCode code) const;  // the end of the run, for --wandb-project

 private:
  std::vector<std::pair<std::string, std::int64_t>> memory_by_owner(const Rank& rank) const;  // bytes of this rank

  const RunSetup& setup_;
  ModelFlops flops_;
  int world_;
  bool writes_;
  std::size_t max_planned_ = 0;  // bytes of this rank at the start, for the largest stage of --rampup-batch-size
  bool warned_ = false;          // about the placement of activations on the host
  std::unique_ptr<StepLog> log_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<TensorBoardLog> tensorboard_;
  std::unique_ptr<WandbLog> wandb_;
};

}  // namespace megalith

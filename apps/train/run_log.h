// What rank 0 tells of a run: the log line, --metrics-jsonl, --tensorboard-dir, and once how the memory is used.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/metrics/metrics.h"
#include "apps/metrics/tensorboard.h"
#include "apps/run/step.h"
#include "apps/summary/offload_report.h"
#include "apps/train/run_setup.h"
#include "graphs/graphed_runner.h"

namespace megalith {

class RunLog {
 public:
  // `setup` outlives the log. Other ranks than 0 write nothing.
  RunLog(const RunSetup& setup, int rank, int world);

  // Opens the files of a run that starts from `state`; a wrong path fails here, on rank 0 alone.
  void open(const TrainState& state);

  struct StepFacts {
    RunProgress before;                      // what the step found done
    std::int64_t batch = 0;                  // samples of the step
    std::int64_t skipped_steps = 0;          // in the whole run
    std::optional<double> validation_loss;   // measured after it
    std::optional<double> checkpoint_stall;  // seconds, of the save before it
    std::int64_t regrows = 0;                // so far, of the room for rows of experts
    std::vector<OffloadStats> offload = {};  // of each rank, where kept activations move
  };
  void step(const Rank& rank, const StepResult& result, const StepFacts& facts);
  // `alone`: of a run with --skip-train; otherwise it goes with the step's metrics.
  void evaluation(const TrainState& state, double loss, bool alone);
  // One line each, once: after the second step, and with graphs not before they are captured.
  void graphs(const std::vector<GraphedRunner::Stats>& ranks) const;
  void no_graphs() const;  // a warning at the end of a run that asked for some
  void memory(const Rank& rank, std::size_t checkpoint_staging) const;

 private:
  std::vector<std::pair<std::string, std::int64_t>> memory_by_owner(const Rank& rank) const;  // bytes of this rank

  const RunSetup& setup_;
  double flops_per_token_;
  int world_;
  bool writes_;
  std::size_t most_planned_ = 0;  // bytes of this rank, at the start: of the largest stage of --rampup-batch-size
  bool warned_ = false;           // of where activations on the host are
  std::unique_ptr<StepLog> log_;
  std::unique_ptr<MetricsLog> metrics_;
  std::unique_ptr<TensorBoardLog> tensorboard_;
};

}  // namespace megalith

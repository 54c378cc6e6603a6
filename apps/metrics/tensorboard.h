// Event files for TensorBoard (--tensorboard-dir), with Megatron's tags: each step's loss, learning rate, batch size,
// gradient norm, time, throughput and memory, and validation losses. Of each layer of experts, in the steps of the log
// line alone, what ExpertLoad has ("moe/load_max_layer_3"). Of activations on the host, also where copies were timed,
// what StepMetrics::offload has, of times the longest ("offload/copy_out_seconds"). The main ones also by consumed
// samples ("lm loss vs samples"), in a second file in the folder "by-samples", a run of its own to TensorBoard, since
// all tags of a folder share one step number. Rank 0 only.
//
// A run's files begin with a session start, at which TensorBoard drops the points of earlier files from that step on:
// those that a killed run wrote after its last checkpoint do not appear twice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "apps/metrics/metrics.h"
#include "core/optim/lr_schedule.h"
#include "core/reports/append_log.h"

namespace megalith {

// Steps between entries, and between those with experts and offload.
struct TensorBoardIntervals {
  std::int64_t entries = 1;
  std::int64_t details = 1;
};

class TensorBoardLog {
 public:
  // Makes the folders and a new file events.out.tfevents.TIME.HOST.PID in each. `start`: what was done before the run;
  // without it they add to what is there and start no session. Fails with kFileIo; what cannot be written later is
  // tried again at each step.
  TensorBoardLog(const std::string& folder, std::optional<RunProgress> start, TensorBoardIntervals intervals = {});
  TensorBoardLog(const TensorBoardLog&) = delete;
  TensorBoardLog& operator=(const TensorBoardLog&) = delete;

  void write(const StepMetrics& metrics);  // if it is time for an entry
  void write(const EvaluationMetrics& metrics);

 private:
  struct Records;  // of one step

  AppendLog steps_;
  AppendLog samples_;
  TensorBoardIntervals intervals_;
  bool is_first_ = true;
};

}  // namespace megalith

// TensorBoard event files (--tensorboard-dir) with Megatron's tags, on rank 0. Each step has loss, learning rate, batch
// size, gradient norm, time, throughput, memory and validation losses. Steps with a log line also have ExpertLoad of
// each MoE layer ("moe/load_max_layer_3"). Runs with offload have StepMetrics::offload, with maximum times if copies
// were timed ("offload/copy_out_seconds"). The main tags are also written by consumed samples ("lm loss vs samples").
// They are in the folder "by-samples", a separate run of TensorBoard, since all tags of a folder share one step number.
//
// A run's files begin with a session start, at which TensorBoard drops the points of earlier files from that step.
// Points that a killed run wrote after its last checkpoint thus appear once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "apps/metrics/metrics.h"
#include "core/optim/lr_schedule.h"
#include "core/reports/append_log.h"

namespace megalith {

// Steps between entries, and between entries with experts and offload.
struct TensorBoardIntervals {
  std::int64_t entries = 1;
  std::int64_t details = 1;
};

class TensorBoardLog {
 public:
  // Creates the folders and a new file events.out.tfevents.TIME.HOST.PID in each. `start`: progress ahead of the run;
  // without it the files add to existing files and start no session. Fails with kFileIo. Later failed writes are tried
  // again at each step.
  TensorBoardLog(const std::string& folder, std::optional<RunProgress> start, TensorBoardIntervals intervals = {});
  TensorBoardLog(const TensorBoardLog&) = delete;
  TensorBoardLog& operator=(const TensorBoardLog&) = delete;

  void write(const StepMetrics& metrics);  // only if an entry is due
  void write(const EvaluationMetrics& metrics);

 private:
  struct Records;  // of one step

  AppendLog steps_;
  AppendLog samples_;
  TensorBoardIntervals intervals_;
  bool is_first_ = true;
};

}  // namespace megalith

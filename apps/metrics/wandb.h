// Offline run of Weights & Biases (--wandb-project), on rank 0; `wandb sync` uploads it. The keys are those of
// --metrics-jsonl. Objects are nested ("offload.bytes_out"), and layers and stages have a key each
// ("experts.layer_3.max"). The configuration has all flags and `megalith`, `commit` and `resumed_step`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/config/options.h"
#include "apps/metrics/metrics.h"
#include "core/reports/wandb_file.h"

namespace megalith {

class WandbLog {
 public:
  // Creates a run folder in --wandb-save-dir, else in --save, else in the current folder. Fails with kFileIo.
  WandbLog(const Options& options, std::int64_t resumed_step);
  WandbLog(const WandbLog&) = delete;
  WandbLog& operator=(const WandbLog&) = delete;

  const std::string& folder() const { return file_.folder(); }
  void write(const StepMetrics& metrics);  // only if an entry is due, as in TensorBoardLog
  void write(const EvaluationMetrics& metrics);
  // Records the end of the run. Without it Weights & Biases shows a crashed run.
  void finish(int exit_code);

 private:
  WandbLog(const Options& options, const WandbRun& run);
  void write(std::int64_t step, std::vector<WandbValue> values);

  double begun_;  // seconds since 1970
  std::int64_t interval_;
  bool is_first_ = true;
  WandbFile file_;
};

}  // namespace megalith

// Options of a run's length, batches, learning rate, evaluation, end and checks.
#pragma once

#include <cstdint>
#include <string>

#include "core/optim/batch_ramp.h"
#include "core/optim/lr_schedule.h"

namespace megalith {

struct TrainingOptions : BatchSizes {
  std::int64_t train_iters = 0;                  // steps; with train_samples only for the log
  std::int64_t train_samples = 0;                // 0: --train-iters is given
  bool skip_train = false;                       // evaluate once and end
  std::vector<std::int64_t> iterations_to_skip;  // steps whose samples are read and not trained

  LrSchedule schedule;  // --lr, --min-lr, --lr-*; after resolve() of train, lr_decay_iters or lr_decay_samples is not 0

  std::int64_t seed = 1234;
  bool init_method_xavier_uniform = false;  // initial weights; else normal

  std::int64_t eval_interval = 1000;  // steps; 0: never
  std::int64_t eval_iters = 100;      // global batches per evaluation
  bool full_validation = false;       // evaluations read all validation data once

  std::int64_t exit_interval = 0;    // ends (exit code 75) after a multiple of these steps; 0: off
  double exit_duration_in_mins = 0;  // 0: off
  std::string stop_file;             // file whose appearance ends the run (exit code 75); empty: none

  std::int64_t max_skipped_steps = 10;          // with NaN or Inf; one more ends the run (exit code 8)
  std::int64_t check_weight_hash_interval = 0;  // steps; 0: never

  bool calculate_per_token_loss = false;  // tokens count equally, instead of microbatches
  bool chooses_loss_mean = false;         // the flag or a file sets it; otherwise --sft does

  bool check_hazards = false;
  std::int64_t suppress_wait = -1;  // test aid: index of the event wait that the hazard checker ignores; -1: none

  bool evaluates() const { return eval_iters > 0 && (eval_interval > 0 || skip_train); }
};

}  // namespace megalith

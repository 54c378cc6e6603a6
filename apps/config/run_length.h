// The end of a run, and how many samples it reads in all.
#pragma once

#include <cstdint>

#include "core/optim/lr_schedule.h"

namespace megalith {

struct TrainingOptions;

struct RunEnd {
  RunProgress at;              // steps and samples of the whole run
  std::int64_t left_over = 0;  // of --train-samples: fewer than one batch more
  friend bool operator==(const RunEnd&, const RunEnd&) = default;
};
// Where a run ends that has come to `done`. With --train-samples it takes whole batches while these do not exceed it,
// else it takes --train-iters steps. Not before `done`.
RunEnd end_of_run(const TrainingOptions& train, const RunProgress& done);

// Training samples that the run has consumed at its end: those before `start`, and what is left to train; with
// --train-samples these, as in Megatron-LM. Sizes of data sets follow from it alone. Error kUsage above kMaxSamples of
// core/checkpoint/train_state.h.
std::int64_t samples_to_train(const TrainingOptions& train, const RunProgress& start);

// Validation samples of all evaluations of a run from step 0 on: one after every eval_interval steps, one at the end.
// Error kUsage as above.
std::int64_t samples_to_evaluate(const TrainingOptions& train);

}  // namespace megalith

// End of a run and its number of samples.
#pragma once

#include <cstdint>

#include "core/optim/lr_schedule.h"

namespace megalith {

struct TrainingOptions;

struct RunEnd {
  RunProgress at;              // steps and samples of the whole run
  std::int64_t left_over = 0;  // samples of --train-samples after the last batch
  friend bool operator==(const RunEnd&, const RunEnd&) = default;
};
// End of a run with progress `done`, not ahead of `done`. With --train-samples the run uses full batches that do not
// exceed it; otherwise it runs --train-iters steps.
RunEnd end_of_run(const TrainingOptions& train, const RunProgress& done);

// Progress after the steps of --iterations-to-skip that follow `done` directly, up to the end of the run.
RunProgress pass_skipped(const TrainingOptions& train, RunProgress done);

// Training samples that the run has consumed at its end: those up to `start` and the rest to train; with
// --train-samples exactly these, as in Megatron-LM. Dataset sizes depend only on this value. Fails with kUsage above
// kMaxSamples of core/checkpoint/train_state.h.
std::int64_t samples_to_train(const TrainingOptions& train, const RunProgress& start);

// Validation samples of all evaluations of a run from step 0: one evaluation every eval_interval steps and one at the
// end. Fails with kUsage as above.
std::int64_t samples_to_evaluate(const TrainingOptions& train);

}  // namespace megalith

// How many samples a run reads in all.
#pragma once

#include <cstdint>

#include "core/optim/lr_schedule.h"

namespace megalith {

struct TrainingOptions;

// Training samples that the run has consumed at its end: those before `start`, and what is left to train; with
// --train-samples these, as in Megatron-LM. Sizes of data sets follow from it alone. Error kUsage above kMaxSamples of
// core/checkpoint/train_state.h.
std::int64_t samples_to_train(const TrainingOptions& train, const RunProgress& start);

// Validation samples of all evaluations of a run from step 0 on: one after every eval_interval steps, one at the end.
// Error kUsage as above.
std::int64_t samples_to_evaluate(const TrainingOptions& train);

}  // namespace megalith

// Progress of a run: its first step, and steps that are not trained.
#include <fmt/format.h>

#include "apps/config/run_length.h"
#include "apps/config/training_options.h"
#include "apps/train/trainer.h"
#include "core/base/log.h"

namespace megalith {

namespace {

std::string nothing_to_do(const TrainingOptions& train, const TrainState& state) {
  if (train.train_samples > 0)
    return fmt::format("nothing to do: after {} of --train-samples {} less than a batch of {} is left",
                       state.consumed_samples, train.train_samples, batch_after(train, state.consumed_samples));
  return fmt::format("nothing to do: the checkpoint's step {} is not below --train-iters {}", state.step,
                     train.train_iters);
}

}  // namespace

// Evaluates without training, or reads the samples of the first step.
void Trainer::begin(bool trains) {
  const TrainingOptions& train = options().train;
  if (train.skip_train) {
    evaluate();
    test();
  } else if (is_main() && !trains) {
    log_info(nothing_to_do(train, state_));
  }
  if (trains) pass_steps();
  if (trains && state_.step < train.train_iters)
    failure_.data = failure_of_any(world_, [this] { samples_->read_next(progress()); });
}

RunProgress Trainer::progress() const {
  return {.steps = state_.step,
          .samples = state_.consumed_samples,
          .passed_steps = state_.passed_steps,
          .passed_samples = state_.passed_samples};
}

RunProgress Trainer::next_trained() const { return pass_skipped(options().train, progress()); }

void Trainer::pass_steps() {
  const RunProgress next = next_trained();
  const std::int64_t first = state_.step + 1;
  if (next.steps < first) return;
  if (is_main()) {
    log_info(fmt::format(
        "{} not trained (--iterations-to-skip)",
        next.steps == first ? fmt::format("step {} is", first) : fmt::format("steps {} to {} are", first, next.steps)));
  }
  state_.step = next.steps;
  state_.consumed_samples = next.samples;
  state_.passed_steps = next.passed_steps;
  state_.passed_samples = next.passed_samples;
}

}  // namespace megalith

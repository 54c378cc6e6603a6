// How the trainer saves: at once, or with --async-save beside the following steps.
#include <fmt/format.h>

#include "apps/trainer.h"
#include "core/base/log.h"

namespace megalith {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

bool Trainer::save() {
  if (options_.checkpoint.save.empty() || last_saved_step_ == state_.step) return true;
  const Clock::time_point start = Clock::now();
  finish_save();  // there is one copy of the state
  if (cannot_save()) return false;
  const SaveCheckpoint request{.model = *model_,
                               .world = world_,
                               .replicas = model_->replicas(),
                               .state = state_,
                               .directory = options_.checkpoint.save,
                               .files = &setup_.files,
                               .keep_last = static_cast<int>(options_.checkpoint.keep_last),
                               .history = &history_,
                               .observer = save_observer_,
                               .hold = hold_folder_};
  bool saved = true;
  if (async_save_) {
    async_save_->begin(request);
    async_stall_ = seconds_since(start);
  } else {
    saved = end_save(save_training_checkpoint(request), state_.step, "");
  }
  save_stall_ = seconds_since(start);
  return saved;
}

bool Trainer::end_save(const SaveResult& result, std::int64_t step, const std::string& how) {
  if (result.saved) {
    last_saved_step_ = step;
    failed_in_row_ = 0;
    if (!is_main()) return true;
    log_info(fmt::format("saved {} ({:.1f} MB in {:.2f} s{})", result.path, static_cast<double>(result.bytes) * 1e-6,
                         result.seconds, how));
    if (!result.message.empty()) log_warning(fmt::format("{} is saved, but {}", result.path, result.message));
    return true;
  }
  ++failed_saves_;
  ++failed_in_row_;
  save_problem_ = result.message;
  if (!is_main()) return false;
  const std::int64_t most = options_.checkpoint.max_failed_saves;
  log_warning(fmt::format("checkpoint of step {} was not saved ({} failed in a row{}): {}", step, failed_in_row_,
                          most == 0 ? "" : fmt::format(", {} end the run", most), result.message));
  return false;
}

bool Trainer::cannot_save() const {
  const std::int64_t most = options_.checkpoint.max_failed_saves;
  return most > 0 && failed_in_row_ >= most;
}

ExitCode Trainer::end_for_saves() {
  failure_ = fmt::format(
      "checkpoints that were not saved: expected fewer than {} in a row (--max-failed-saves), got {}, so the run ends "
      "after step {} (last saved: {}): {}",
      options_.checkpoint.max_failed_saves, failed_in_row_, state_.step,
      last_saved_step_ < 0 ? "none" : fmt::format("step {}", last_saved_step_), save_problem_);
  return ExitCode::kFileIo;
}

bool Trainer::end_async_save(const AsyncSave::Finished& over) {
  return end_save(
      over.save, over.step,
      fmt::format(" beside the steps; stall {:.1f} ms, copy {:.1f} ms", 1e3 * async_stall_, 1e3 * over.copy_seconds));
}

void Trainer::poll_save() {
  if (!async_save_) return;
  if (const std::optional<AsyncSave::Finished> over = async_save_->poll()) end_async_save(*over);
}

bool Trainer::finish_save() {
  if (!async_save_ || !async_save_->pending()) return true;
  if (const std::optional<AsyncSave::Finished> over = async_save_->poll()) return end_async_save(*over);
  const Clock::time_point start = Clock::now();
  const AsyncSave::Finished over = async_save_->wait();
  if (over.step != state_.step) {
    ++saves_waited_for_;
    if (is_main())
      log_info(fmt::format("waited {:.1f} ms for the checkpoint of step {}", 1e3 * seconds_since(start), over.step));
  }
  return end_async_save(over);
}

}  // namespace megalith

#include "apps/train/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "apps/checkpoint/checkpoint_flags.h"
#include "apps/config/checkpoint_options.h"
#include "apps/config/training_options.h"
#include "core/base/counted.h"
#include "core/base/files/fault.h"
#include "core/base/log.h"
#include "core/base/seconds_since.h"
#include "core/device/copy.h"

namespace megalith {

namespace {

using Clock = std::chrono::steady_clock;

// Rejects a checkpoint that this run cannot continue from, for any model.
void check_origin(const Options& options, const std::string& tokenizer, const LoadedCheckpoint& found) {
  const CheckpointOptions& wanted = options.checkpoint;
  if (found.state().tokenizer != tokenizer) {
    refuse_usage("--tokenizer-type of checkpoint " + found.path(),
                 {.expected = found.state().tokenizer,
                  .got = tokenizer,
                  .remedy = "use the checkpoint's tokenizer flags and files"});
  }
  const auto seed = static_cast<std::uint64_t>(options.train.seed);
  if (!wanted.finetune && found.state().seed != seed) {
    refuse_usage("--seed of checkpoint " + found.path(),
                 {.expected = std::to_string(found.state().seed),
                  .got = std::to_string(seed),
                  .remedy = "use the checkpoint's seed, or --finetune to start a new data order with these weights"});
  }
  const bool has_moments = std::ranges::any_of(
      found.tensors(), [](const TensorSpec& tensor) { return kind_of(tensor.name) == kExpAvgKind; });
  if (!wanted.finetune && !wanted.no_load_optim && !has_moments) {
    refuse_usage("--load " + wanted.load,
                 {.expected = "--finetune or --no-load-optim with it, as the checkpoint has only weights (from convert "
                              "or --no-save-optim)",
                  .got = "neither",
                  .remedy = "add --finetune to start at step 0 with Adam's moments at 0"});
  }
}

}  // namespace

RunCheckpoints::RunCheckpoints(RunSetup& setup, Rank& rank, Step& step, Communicator& world, Communicator* save_group)
    : setup_(setup), rank_(rank), world_(world) {
  if (save_group != nullptr) async_ = std::make_unique<AsyncSave>(rank, step, *save_group);
}

void RunCheckpoints::load(TrainState& state) {
  const Options& options = setup_.options;
  const CheckpointOptions& wanted = options.checkpoint;
  history_ = std::move(setup_.found.history);
  std::optional<LoadedCheckpoint> found = std::exchange(setup_.found.checkpoint, std::nullopt);
  if (!found && !setup_.found.searched) found = find_wanted(wanted, &world_, &history_);
  if (!found) {
    // A run restarts by saving and loading the same folder; its first start finds no checkpoint.
    if (wanted.load == wanted.save && wanted.ckpt_step == 0) {
      if (is_main()) log_info("no checkpoint in " + wanted.load + " yet: starting from the seed");
      return;
    }
    refuse_no_checkpoint(wanted.load, "check the folder, or use the same folder for --save to start a new run in it");
  }
  const bool weights_only = wanted.finetune || wanted.no_load_optim;
  check_origin(options, setup_.tokenizer.identity(), *found);
  const TrainState& from = found->state();
  const std::string other_numbers = check_same_model(options, found->path(), from.config);
  load_tensors({.parameters = *rank_.model.gpt.parameters,
                .all_parameters = rank_.model.all_parameters.get(),
                .optimizer = &rank_.optimizer.adamw,
                .stream = rank_.streams.compute},
               *found, weights_only ? LoadScope::kWeights : LoadScope::kEverything);
  if (is_main()) add_small_files(*found, setup_.files);  // also those of imported weights
  if (!wanted.finetune) {
    state.step = from.step;
    state.consumed_samples = from.consumed_samples;
    state.consumed_validation_samples = from.consumed_validation_samples;
    state.data_order_samples = data_order_of(from);
    state.passed_steps = from.passed_steps;
    state.passed_samples = from.passed_samples;
    state.skipped_steps = from.skipped_steps;
    if (!weights_only) state.adam_count = from.adam_count;
    state.gemm_algorithms = from.gemm_algorithms;
  } else if (from.step > 0) {
    history_.parent.reset();  // a new run from step 0; imported weights are its first checkpoint
  }
  const StepParameters start{.adam_count = state.adam_count};
  copy_from_host(rank_.streams.compute, rank_.step.parameters, &start, sizeof(start));
  rank_.streams.compute.synchronize();
  fault_point("load.end");
  last_saved_ = !wanted.finetune && wanted.load == wanted.save ? state.step : -1;
  if (is_main())
    log_info(
        fmt::format("loaded {} (step {}, {})", found->path(), from.step, counted(from.consumed_samples, "sample")));
  const std::string changes = wanted.finetune ? "" : changed_flags(options, from.config);
  if (is_main() && !changes.empty()) log_warning("flags that differ from " + found->path() + ": " + changes);
  if (is_main() && !other_numbers.empty()) {
    log_warning(fmt::format("--finetune: the weights of {} were trained with other flags, which change the results: {}",
                            found->path(), other_numbers));
  }
}

bool RunCheckpoints::save(const TrainState& state) {
  const CheckpointOptions& checkpoint = setup_.options.checkpoint;
  if (checkpoint.save.empty() || last_saved_ == state.step) return true;
  const Clock::time_point start = Clock::now();
  finish(state.step);  // there is one copy of the state
  if (cannot_save()) return false;
  SaveRequest request{.directory = checkpoint.save,
                      .state = state,
                      .shards = {},
                      .files = &setup_.files,
                      .keep_last = static_cast<int>(checkpoint.number_to_keep()),
                      .retain_interval = checkpoint.save_retain_interval,
                      .history = &history_,
                      .ranks = &world_,
                      .observer = observer_,
                      .hold = hold_folder_};
  bool saved = true;
  if (async_) {
    async_->begin(std::move(request));
    async_stall_ = seconds_since(start);
  } else {
    saved = end(save_training_checkpoint(rank_, std::move(request)));
  }
  stall_ = seconds_since(start);
  return saved;
}

bool RunCheckpoints::end(const SaveResult& result) {
  if (result.saved) {
    last_saved_ = result.step;
    failed_in_row_ = 0;
    if (!is_main()) return true;
    const std::string background = async_ ? fmt::format(" concurrently with the steps; stall {:.1f} ms, copy {:.1f} ms",
                                                        1e3 * async_stall_, 1e3 * async_->copy_seconds())
                                          : "";
    log_info(fmt::format("saved {} ({:.1f} MB in {:.2f} s{})", result.path, static_cast<double>(result.bytes) * 1e-6,
                         result.seconds, background));
    if (!result.message.empty()) log_warning(fmt::format("{} is saved, but {}", result.path, result.message));
    return true;
  }
  ++failed_;
  ++failed_in_row_;
  problem_ = result.message;
  if (!is_main()) return false;
  const std::int64_t most = setup_.options.checkpoint.max_failed_saves;
  log_warning(fmt::format("checkpoint of step {} was not saved ({} failed in a row{}): {}", result.step, failed_in_row_,
                          most == 0 ? "" : fmt::format(", {} end the run", most), result.message));
  return false;
}

bool RunCheckpoints::cannot_save() const {
  const std::int64_t most = setup_.options.checkpoint.max_failed_saves;
  return most > 0 && failed_in_row_ >= most;
}

std::string RunCheckpoints::failure(std::int64_t step) const {
  return fmt::format(
      "checkpoints that were not saved: expected fewer than {} in a row (--max-failed-saves), got {}, so the run ends "
      "after step {} (last saved: {}): {}",
      setup_.options.checkpoint.max_failed_saves, failed_in_row_, step,
      last_saved_ < 0 ? "none" : fmt::format("step {}", last_saved_), problem_);
}

void RunCheckpoints::poll() {
  if (!async_) return;
  if (const std::optional<SaveResult> over = async_->poll()) end(*over);
}

bool RunCheckpoints::finish(std::int64_t step) {
  if (!async_ || !async_->pending()) return true;
  std::optional<SaveResult> over = async_->poll();
  if (!over) {
    const Clock::time_point start = Clock::now();
    over = async_->wait();
    if (over->step != step) {
      ++waited_for_;
      if (is_main())
        log_info(fmt::format("waited {:.1f} ms for the checkpoint of step {}", 1e3 * seconds_since(start), over->step));
    }
  }
  return end(*over);
}

}  // namespace megalith

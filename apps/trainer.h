// The step loop: samples in, steps through the model, evaluation, checkpoints, logs. One object per rank; ranks are
// processes (apps/train.cpp) or threads (tests).
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/async_save.h"
#include "apps/checkpoint_flags.h"
#include "apps/metrics.h"
#include "apps/model_builder.h"
#include "apps/run_tokenizer.h"
#include "apps/stop_request.h"
#include "apps/tensorboard.h"
#include "apps/training_checkpoint.h"
#include "core/data/dataset.h"
#include "core/data/tokenizer.h"
#include "core/device/capture_guard.h"
#include "core/device/hazard_checker.h"
#include "core/device/trace.h"
#include "core/tensor/finite_checker.h"
#include "parallel/comm/on_all_ranks.h"
#include "parallel/data_parallel/replica_check.h"
#include "parallel/mesh/mesh.h"

namespace megalith {

// What each rank prepares on its own before the ranks talk to each other; its errors are mostly the user's.
struct RunSetup {
  Options options;  // complete
  Tokenizer tokenizer;
  std::vector<SmallFile> files;  // rank 0's, for checkpoints: those of the tokenizer
  FoundCheckpoint found;         // where it was looked for already
  Datasets data;
  StepPlans plans;
  CategoryBytes planned_persistent{};  // memory outside the arena, as planned
};
// `options` is complete except for the vocabulary size, which the tokenizer gives.
RunSetup prepare_run(const Options& options, int rank, int world, FoundCheckpoint found = {});

class Trainer {
 public:
  // `host_world`, if given: the same ranks as `world`, for groups that need no GPU.
  Trainer(RunSetup setup, Communicator& world, const StopRequest& stop, Communicator* host_world = nullptr);
  ~Trainer();

  // Trains (or, with --skip-train, evaluates) and returns the exit code.
  ExitCode run();

  TrainingModel& model() { return *model_; }
  const StepPlans& plans() const { return setup_.plans; }
  const HazardChecker* hazards() const { return hazards_.get(); }
  std::int64_t event_waits() const { return waits_.count; }
  std::size_t checkpoint_staging() const { return async_save_ ? async_save_->bytes() : 0; }  // bytes
  std::int64_t saves_waited_for() const { return saves_waited_for_; }  // still under way when the next one was due
  void observe_saves(const FileObserver* observer) { save_observer_ = observer; }  // for tests
  // Called on rank 0 before each save with its folder; what it throws fails the save.
  void hold_folder(std::function<void(const Directory&)> hold) { hold_folder_ = std::move(hold); }
  // Compares what the data-parallel ranks hold in copies. Collective; no step is pending.
  std::optional<ReplicaDifference> replica_difference();

 private:
  void load();
  // A step's samples, in `tokens`, which must stay. Throws where the files are no longer those that were opened.
  StepInput input_of(const Dataset& dataset, std::int64_t consumed_samples, std::int64_t iteration,
                     std::vector<std::int32_t>& tokens) const;
  void read_next();  // the samples of the next step
  ExitCode run_steps();
  ExitCode step_loop();
  bool start_step();                  // enqueues the next step; false if the one before broke the budget of skips
  void finish_step(bool evaluating);  // waits for the oldest pending one and logs it, after an evaluation if so
  // trainer_checks.cpp: numbers that went wrong.
  void explain_skip();    // names the first NaN or Inf of the step that was skipped, if one was; no step is pending
  bool over_budget();     // of --max-skipped-steps; failure_ then says so
  bool replicas_agree();  // failure_ then says so
  bool found_hazards();   // under --check-hazards, on any rank; warns of its own. Collective
  void check_calls();     // after each of the first steps: that all ranks communicate the same; throws EveryRankFailed
  bool evaluates_after(std::int64_t step) const;
  // trainer_trace.cpp
  void profile();      // starts or stops the profiler before the next step
  void trace();        // the same for --trace
  void write_trace();  // ends a trace that is under way; collective
  void evaluate(const Dataset& dataset, std::string_view name);
  void log_step(const StepResult& result, std::int64_t consumed_samples);
  void log_memory();
  std::vector<std::pair<std::string, std::int64_t>> memory_by_owner() const;  // bytes of this rank
  // trainer_save.cpp: false if the checkpoint could not be written; the run goes on. With --async-save only begun.
  bool save();
  bool finish_save();  // waits for the one that is under way; true if there is none
  void poll_save();    // tells if it is over
  bool end_save(const SaveResult& result, std::int64_t step, const std::string& how);
  bool end_async_save(const AsyncSave::Finished& over);
  bool cannot_save() const;  // --max-failed-saves is reached
  ExitCode end_for_saves();  // failure_ then says so
  bool should_stop();
  void read_ahead();                  // read_next(), whose error is for should_stop()
  void check_data();                  // that the files are as they were opened, rank 0; else data_error_
  ExitCode end_for_data(bool saved);  // failure_ then says so
  bool is_main() const { return world_.rank() == 0; }

  RunSetup setup_;
  const Options& options_;
  Communicator& world_;
  const StopRequest& stop_;
  StopFile stop_file_;  // rank 0 looks at it
  std::unique_ptr<HazardChecker> hazards_;
  FiniteChecker finite_;
  Trace trace_;
  enum class TraceState : std::uint8_t { kNotBegun, kUnderWay, kWritten } trace_state_ = TraceState::kNotBegun;
  WaitCounter waits_;
  CaptureGuard captures_;
  Mesh mesh_;
  std::unique_ptr<TrainingModel> model_;
  std::unique_ptr<MetricsLog> metrics_;          // rank 0
  std::unique_ptr<TensorBoardLog> tensorboard_;  // rank 0
  std::unique_ptr<StepLog> log_;                 // rank 0
  CheckpointHistory history_;
  std::function<void(const Directory&)> hold_folder_;
  std::unique_ptr<Communicator> save_group_;  // with --async-save, as the next
  std::unique_ptr<AsyncSave> async_save_;     // after the model and what it saves with: its thread uses them
  double async_stall_ = 0;                    // seconds that the run's thread spent on it
  std::int64_t saves_waited_for_ = 0;
  std::optional<double> save_stall_;  // seconds, of the save before the current step
  const FileObserver* save_observer_ = nullptr;
  TrainState state_;
  std::int64_t steps_run_ = 0;                 // by this process
  std::deque<std::int64_t> consumed_samples_;  // after each pending step
  std::int64_t failed_saves_ = 0;
  std::int64_t failed_in_row_ = 0;  // saves since the last that succeeded; the same on all ranks after finish_save()
  std::string save_problem_;        // of the last of them
  std::int64_t last_saved_step_ = -1;
  StepInput next_;                                  // the step's that comes next
  std::vector<std::int32_t> next_tokens_, tokens_;  // of it; of an evaluation or a step that is run again
  std::exception_ptr data_error_;                   // of this rank: data that cannot be read, files that changed
  std::optional<RankFailure> data_problem_;         // the first rank's, the same on all; the run ends
  std::chrono::steady_clock::time_point next_data_check_{};
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::optional<double> validation_loss_;  // measured after the current step

  struct SkippedStep {
    StepResult result;
    std::int64_t consumed_samples = 0;  // before it
  };
  std::optional<SkippedStep> skipped_;  // not yet explained
  std::string failure_;                 // why the run ends; the same on all ranks
  std::int64_t steps_started_ = 0;      // by this process
};

// Sets what depends on the tokenizer and on the number of ranks: vocabulary, global batch size, number of steps. Errors
// (exit code 2) say what of the sizes and the layout does not fit.
void complete_options(Options& options, const Tokenizer& tokenizer, int world);
}  // namespace megalith

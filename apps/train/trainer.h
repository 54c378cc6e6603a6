// Loop over the steps of a run: samples, steps, evaluation, checkpoints, logs. Each rank has one object; ranks are
// processes (apps/train/main.cpp) or threads (tests).
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "apps/config/run_length.h"
#include "apps/train/numerics_guard.h"
#include "apps/train/run_checkpoints.h"
#include "apps/train/run_log.h"
#include "apps/train/run_setup.h"
#include "apps/train/trace_window.h"
#include "core/base/machine/stop_request.h"
#include "core/device/capture_guard.h"
#include "parallel/comm/on_all_ranks.h"

namespace megalith {

// Instruments of the run's streams.
struct RunInstruments {
  RunInstruments(const Options& options, Communicator& world);
  Instruments of_streams();

  NumericsGuard guard;
  TraceWindow window;
  WaitCounter waits;
  CaptureGuard captures;
};

class Trainer {
 public:
  // `host_world`: the same ranks as `world`, for groups that need no GPU; may be null.
  Trainer(RunSetup setup, Communicator& world, const StopRequest& stop, Communicator* host_world = nullptr);

  // Trains (or, with --skip-train, evaluates) and returns the exit code.
  ExitCode run();

  Rank& rank() { return *rank_; }
  Step& step() { return *step_; }
  RunCheckpoints& checkpoints() { return *checkpoints_; }
  const StepSamples& samples() const { return *samples_; }
  const StepPlans& plans() const { return setup_.plans; }
  const HazardChecker* hazards() const { return instruments_.guard.hazards(); }
  std::int64_t event_waits() const { return instruments_.waits.count; }

 private:
  void build(Communicator& host_world);
  void take_data();
  ExitCode step_loop();
  // Functions of trainer_progress.cpp.
  void begin(bool trains);
  RunProgress progress() const;       // ahead of the next step
  RunProgress next_trained() const;   // same, after the steps of --iterations-to-skip
  void pass_steps();                  // of --iterations-to-skip ahead of the next step
  void pass_window();                 // starts or ends --trace and --profile ahead of the next step
  void start_step();                  // enqueues the next step, unless the previous step exceeded the budget of skips
  void finish_step(bool evaluating);  // waits for the oldest pending step and ends it, unless it must run again
  void end_step(const StepResult& result, bool evaluating);  // logs it, after an evaluation if requested
  void explain_skip();
  void log_memory();
  bool times_copies(std::int64_t iteration) const;                      // of offloaded activations
  std::vector<OffloadStats> measured_copies(const StepResult& result);  // of all ranks; collective
  std::optional<double> loss_of(const StepSamples::Evaluated& set, std::int64_t first, std::int64_t batches);
  void evaluate();
  void test();
  void complete(ExitCode code);
  // Functions of trainer_room.cpp.
  bool lacks_room(const ExpertRoom& needed) const;
  StepResult with_room(const StepResult& lacked);  // reruns the last step
  void make_room(const ExpertRoom& needed, const std::string& what);
  void enter_stage();  // stage of --rampup-batch-size of the next step
  struct NewPlan;
  void plan_again(const NewPlan& next);
  bool is_due(std::int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool should_stop();
  // Set failure_, the reason for the end of the run.
  bool ends_for(std::string problem);  // false without a problem
  ExitCode end_for_data(bool saved);
  void report_left_over() const;

  const Options& options() const { return setup_.options; }
  bool is_main() const { return world_.rank() == 0; }

  RunSetup setup_;
  Communicator& world_;
  const StopRequest& stop_;
  StopFile stop_file_;  // read on rank 0
  RunInstruments instruments_;
  Mesh mesh_;
  std::unique_ptr<Communicator> save_group_;  // with --async-save
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<Step> step_;
  std::unique_ptr<RunCheckpoints> checkpoints_;  // after the members that its thread uses
  std::unique_ptr<StepSamples> samples_;
  RunLog log_;
  TrainState state_;
  struct Progress {
    std::int64_t started = 0, finished = 0;  // steps of this process
    RunProgress first;                       // ahead of its first step
    RunEnd end;                              // of the run
    bool memory_logged = false;
    bool asked_to_stop = false;             // otherwise than by --exit-interval
    std::optional<StepResult> lacked_room;  // of a step that must run again
    std::int64_t regrows = 0;
    std::deque<RunProgress> begun_after;    // progress ahead of each pending step
    std::optional<double> validation_loss;  // measured after the current step
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  } progress_;
  struct Failure {  // reason for the end of the run; equal on all ranks
    std::optional<RankFailure> data;
    std::string message;
  } failure_;
};

}  // namespace megalith

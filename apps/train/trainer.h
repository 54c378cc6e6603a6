// The loop over the steps of a run: samples in, steps through the rank, evaluation, checkpoints, logs. One object per
// rank; ranks are processes (apps/train/main.cpp) or threads (tests).
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

// What watches the streams of a run.
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
  // `host_world`, if given: the same ranks as `world`, for groups that need no GPU.
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
  void pass_window();                 // starts or ends the recording of --trace and --profile before the next step
  void start_step();                  // enqueues the next step, unless the one before broke the budget of skips
  void finish_step(bool evaluating);  // waits for the oldest pending one and ends it, unless it has to be done again
  void end_step(const StepResult& result, bool evaluating);  // logs it, after an evaluation if so
  void explain_skip();
  void log_memory();
  bool times_copies(std::int64_t iteration) const;                      // of kept activations
  std::vector<OffloadStats> measured_copies(const StepResult& result);  // of all ranks; collective
  void evaluate();
  // trainer_room.cpp
  bool lacks_room(const ExpertRoom& needed) const;
  StepResult with_room(const StepResult& lacked);  // of the last step, done again
  void make_room(const ExpertRoom& needed, const std::string& what);
  void enter_stage();  // of --rampup-batch-size, which the next step belongs to
  struct NewPlan;
  void plan_again(const NewPlan& next);
  bool is_due(std::int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool should_stop();
  // Both set failure_, why the run ends.
  bool ends_for(std::string problem);  // false where there is none
  ExitCode end_for_data(bool saved);
  void tell_left_over() const;

  const Options& options() const { return setup_.options; }
  bool is_main() const { return world_.rank() == 0; }

  RunSetup setup_;
  Communicator& world_;
  const StopRequest& stop_;
  StopFile stop_file_;  // rank 0 looks at it
  RunInstruments instruments_;
  Mesh mesh_;
  std::unique_ptr<Communicator> save_group_;  // with --async-save
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<Step> step_;
  std::unique_ptr<RunCheckpoints> checkpoints_;  // after what its thread uses
  std::unique_ptr<StepSamples> samples_;
  RunLog log_;
  TrainState state_;
  struct Progress {
    std::int64_t started = 0, finished = 0;  // steps of this process
    RunProgress first;                       // before its first
    RunEnd end;                              // of the run
    bool memory_logged = false;
    std::optional<StepResult> lacked_room;  // of a step that has to be done again
    std::int64_t regrows = 0;
    std::deque<RunProgress> begun_after;    // what each pending step found done
    std::optional<double> validation_loss;  // measured after the current step
    std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  } progress_;
  struct Failure {  // why the run ends; the same on all ranks
    std::optional<RankFailure> data;
    std::string message;
  } failure_;
};

}  // namespace megalith

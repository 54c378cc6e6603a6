// Training step of one rank: a list of actions (step_actions.h), and one place per kind of action that carries it out.
// The trainer's loop (apps/train/trainer.h) chooses samples and learning rate.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "apps/run/staging.h"
#include "apps/run/step_actions.h"
#include "apps/run/step_graphs.h"
#include "apps/run/step_plan.h"

namespace megalith {

class Step {
 public:
  explicit Step(Rank& rank);  // outlives the step
  ~Step() { rank_.drain(); }  // the streams read staged data
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // Sets the plans ahead of the first step, not on the plan backend. Collective.
  void use(const StepPlans& plans);
  // Drops graphs and frees the step's memory, with no step pending; call use() next. Collective.
  void give_back();
  // Sets training steps' number of microbatches, at most that at the start; between give_back() and use().
  void set_microbatches(std::int64_t microbatches);

  // Enqueues one training step. At most two steps may be pending, so that the host prepares a step while the device
  // computes the previous one. `updates` is called when all but the parameter update is enqueued, and may read the
  // previous step's result. If it returns false, the step is dropped with only gradients changed; it returns the same
  // on all ranks. Returns false if the step was dropped.
  bool train(const StepInput& input, const std::function<bool()>& updates = nullptr) { return train(&input, updates); }
  // Runs the last step again after it lacked capacity and its result was read, with the same samples.
  void train_again() { train(nullptr, nullptr); }
  int pending() const { return pending_; }
  // Waits for the oldest pending step.
  StepResult read_result();
  // Runs forward over M microbatches and waits. No step may be pending.
  Evaluation evaluate(const StepInput& input);

  // Runs a training step without its update, and waits. `before` is called ahead of each action. Inputs of a step stay
  // unchanged, and all memory between steps is zeroed, so that only the step's computation can produce NaN. No step may
  // be pending.
  void repeat(const StepInput& input, const std::function<void(const Action&)>& before);

  // Runs the first microbatch's forward and backward, and its evaluation forward if the run has any, on blank tokens,
  // and waits. Libraries thus load kernels, and GEMMs are known ahead of the first step; with graphs and several ranks
  // also the path of captured collectives. Stages exchange no messages, and inputs of steps stay unchanged. Hooks see
  // Phase::kWarmUp, as in the first --cuda-graph-warmup-steps.
  void warm_up();
  // Calls the hooks after all warmup at the end of a run, if warmup began and they were not called.
  void end_warm_up() { warm_up_.end(); }

  // If `on`, training steps neither capture nor replay. Equal on all ranks, as all ranks' graphs hold a collective.
  void run_eagerly(bool on) { warm_up_.run_eagerly(on); }

  // Sets `times(iteration)`, true for training steps with timed copies, not for two steps in a row. The times are in
  // the step's result.
  void time_copies(std::function<bool(std::int64_t)> times) { times_copies_ = std::move(times); }
  // Sets `level(iteration)`, the level of StepClock in a training step.
  void time_parts(std::function<std::int64_t(std::int64_t)> level) { parts_level_ = std::move(level); }

  // Size of the step's memory that the driver reports; none if other processes changed the free memory at that time.
  std::optional<std::size_t> driver_bytes() const { return driver_bytes_; }

  // Lets the next update of parameters and optimizer state wait for `read`, which a reading stream has recorded.
  void hold_update(Event& read) { before_update_ = &read; }
  const StepActions& actions() const { return actions_; }
  // First entry in the timeline of each action of the last step, on the plan backend.
  const std::vector<std::size_t>& action_entries() const { return action_entries_; }

 private:
  bool train(const StepInput* input, const std::function<bool()>& updates);
  // Runs a list; without `input` on the last staged samples. A false `proceeds` ahead of an action ends the step.
  void run(Mode mode, Verbs verbs, const StepInput* input, const std::vector<Action>& actions,
           const std::function<bool(const Action&)>& proceeds = nullptr);
  void carry_out(const Action& action);  // switch over the kinds
  void drop_broken_off();                // on all ranks

  Rank& rank_;
  StepActions actions_;
  Staging staging_;
  std::span<MicrobatchParameters> microbatch_parameters_;  // device, by column
  WarmUp warm_up_;
  Mode mode_ = Mode::kTrain;     // of the running step
  Phase phase_ = Phase::kEager;  // of its eager verbs
  bool broken_off_ = false;      // the last step ended by an exception: its staged data may still be read
  int pending_ = 0;
  std::function<bool(std::int64_t)> times_copies_;
  std::function<std::int64_t(std::int64_t)> parts_level_;
  std::optional<std::size_t> driver_bytes_;
  Event* before_update_ = nullptr;    // of hold_update(), until it was waited for
  const StepPlans* plans_ = nullptr;  // of use()
  GraphSignature fixed_;              // of the run: list, plan, sizes
  std::vector<std::size_t> action_entries_;
};

}  // namespace megalith

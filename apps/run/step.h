// A training step of one rank: a list of actions (step_actions.h), and for each kind of action the one place that
// carries it out. The trainer's loop (apps/train/trainer.h) only says which samples and which learning rate.
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
  explicit Step(Rank& rank);  // which outlives it
  ~Step() { rank_.drain(); }  // the streams read what is staged
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // Before the first step, not on the plan backend. Collective.
  void use(const StepPlans& plans);
  // With no step pending: drops graphs and gives the step's memory back; use() comes next. Collective.
  void give_back();
  // Between these two: training steps have this number of microbatches from now on, at most as many as at the start.
  void set_microbatches(std::int64_t microbatches);

  // Enqueues one training step. At most two may be pending, so that the host prepares a step while the device computes
  // the one before. `updates`, if given, is called when all but the update of the parameters is enqueued, and may read
  // the result of the step before; where it returns false the step is dropped: nothing has changed but gradients. It
  // returns the same on all ranks. False if the step was dropped.
  bool train(const StepInput& input, const std::function<bool()>& updates = nullptr) { return train(&input, updates); }
  // The last step once more, which lacked room and whose result was read; samples and all else are the same.
  void train_again() { train(nullptr, nullptr); }
  int pending() const { return pending_; }
  // Waits for the oldest pending step.
  StepResult read_result();
  // Runs forward over M microbatches and waits. No step may be pending.
  Evaluation evaluate(const StepInput& input);

  // Runs a training step but for its update, and waits. `before` is called before each action is enqueued. What a step
  // reads stays as it is, and all memory between steps is zero before, so that only what the step computes can be NaN.
  // No step may be pending.
  void repeat(const StepInput& input, const std::function<void(const Action&)>& before);

  // Runs the first microbatch's forward and backward, and its forward in evaluation if the run has any, on tokens of no
  // meaning and waits, so that libraries load their kernels and GEMMs are known before the first step; with graphs and
  // several ranks once more the way that captured collectives go. Stages send each other nothing. Changes nothing that
  // a step reads. Hooks see Phase::kWarmUp, as in the first --cuda-graph-warmup-steps.
  void warm_up();
  // At the end of a run, which may come before the first step with graphs: the hooks behind all warm-up are called, if
  // there was any and they were not.
  void end_warm_up() { warm_up_.end(); }

  // While `on`, training steps neither capture nor replay. The same on all ranks: a collective in a graph is in all of
  // its ranks' graphs.
  void run_eagerly(bool on) { warm_up_.run_eagerly(on); }

  // `times(iteration)`: are the copies of kept activations timed in this training step? Steps that are lie at least two
  // apart. Times of a step are in its result.
  void time_copies(std::function<bool(std::int64_t)> times) { times_copies_ = std::move(times); }

  // What the driver says that the step's memory took, where that was seen: nobody else took or gave any at that time.
  std::optional<std::size_t> driver_bytes() const { return driver_bytes_; }

  // The next update of parameters and optimizer state waits for `read`, which a stream that reads them has recorded.
  void hold_update(Event& read) { before_update_ = &read; }
  const StepActions& actions() const { return actions_; }
  // On the plan backend: where in the timeline each action of the last step begins.
  const std::vector<std::size_t>& action_entries() const { return action_entries_; }

 private:
  bool train(const StepInput* input, const std::function<bool()>& updates);
  // Without `input` what was staged last. `proceeds` is asked before each action; false ends the step there.
  void run(Mode mode, Verbs verbs, const StepInput* input, const std::vector<Action>& actions,
           const std::function<bool(const Action&)>& proceeds = nullptr);
  void carry_out(const Action& action);  // the switch over the kinds
  void drop_broken_off();                // on all ranks

  Rank& rank_;
  StepActions actions_;
  Staging staging_;
  std::span<MicrobatchParameters> microbatch_parameters_;  // device, by column
  WarmUp warm_up_;
  Mode mode_ = Mode::kTrain;     // of the step under way
  Phase phase_ = Phase::kEager;  // of its eager verbs
  bool broken_off_ = false;      // the last step ended by an exception: what it staged may still be read
  int pending_ = 0;
  std::function<bool(std::int64_t)> times_copies_;
  std::optional<std::size_t> driver_bytes_;
  Event* before_update_ = nullptr;    // of hold_update(), until it was waited for
  const StepPlans* plans_ = nullptr;  // of use()
  GraphSignature fixed_;              // of the run: the list, the plan, sizes
  std::vector<std::size_t> action_entries_;
};

}  // namespace megalith

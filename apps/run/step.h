// A training step of one rank: a list of actions (parallel/pipeline_parallel/schedule.h), and for each kind of action
// the one place that carries it out. The trainer's loop (trainer.h) only says which samples and which learning rate.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/run/rank.h"
#include "apps/run/staging.h"
#include "apps/run/step_plan.h"
#include "moe/expert_load.h"
#include "parallel/pipeline_parallel/lowering.h"

namespace megalith {

// What a rank does in a step, in order.
struct StepActions {
  std::vector<Action> train;
  std::vector<Action> evaluate;
  std::vector<int> units_ahead = {};  // whose gathers both find started (fsdp/unshard_lowering.h)
};
StepActions step_actions(const Rank& rank);
// One line an action, with the names of segments and the number of the graph that holds it; -1: none.
std::string printed(const std::vector<Action>& actions, const GptModel& gpt, const std::vector<int>& graph_of_each);

struct StepResult {
  std::int64_t iteration = 0;
  float loss = 0;       // mean over the tokens of the global batch
  float grad_norm = 0;  // before clipping
  // Of the routers, without their coefficients: means over microbatches and layers of experts; absent without such
  // losses.
  std::optional<float> load_balancing_loss, router_z_loss;
  std::vector<ExpertLoad> expert_loads;  // of each layer of experts
  ExpertRoom room_needed;                // where ranks share out experts: of all ranks, layers and microbatches
  bool lacks_room = false;               // more than there was: nothing was updated, and nothing here means anything
  bool skipped = false;                  // loss or gradients were not finite: nothing was updated
  std::int64_t adam_count = 0;
  std::int64_t bytes_out = 0, bytes_back = 0;  // of this rank's kept activations, to the host and back
  std::optional<CopyTimes> copy_times;         // of these, where they were asked for
  double enqueue_seconds = 0;                  // of the host
  double seconds = 0;  // from the end of the step before, if this one was enqueued by then, or from its start
};

class DroppedWork;  // step_graphs.cpp

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
  // Runs forward over M microbatches and waits: mean loss over the tokens of the global batch. No step may be pending.
  float evaluate(const StepInput& input);
  ExpertRoom evaluation_needed() const { return evaluation_needed_; }  // of the last one, as StepResult::room_needed

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
  void end_warm_up();

  // While `on`, training steps neither capture nor replay. The same on all ranks: a collective in a graph is in all of
  // its ranks' graphs.
  void run_eagerly(bool on) { runs_eagerly_ = on; }

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
  enum class Verbs : std::uint8_t { kEager, kWarmUp, kGraphs };
  bool train(const StepInput* input, const std::function<bool()>& updates);
  // Without `input` what was staged last.
  void run(Mode mode, Verbs verbs, const StepInput* input, const std::vector<Action>& actions,
           const std::function<bool(const Action&)>& proceeds = nullptr);
  void run(const Action& action);
  void drop_broken_off();      // on all ranks
  Verbs verbs_of_next_step();  // of training
  void pass_warm_up(bool ends);
  void capture_ahead(const std::vector<Action>& actions);
  void pass_ahead(const Action& action, DroppedWork& dropped);  // of those that no graph holds
  GraphSignature signature();
  void carry_out(const Action& action);  // the switch over the kinds
  static ReportSizes report_sizes(const Rank& rank);
  void begin_step();
  void zero_gradients();
  void finish_reduce();
  void load(const Action& action);
  void tie_gradients();
  void copy_tied(Stream& stream, const Tensor& from_first_stage);
  void reduce_sums();
  void sum_of_experts();
  RowRoom row_room() const;
  void use_arena(const ArenaPlan& plan);
  void begin_copies(bool graphs);
  void end_copies(const ActivationTransfer::Stats& before, StagedStep& step);
  static void copy_room(Stream& compute, const Tensor& needed, StagedStep& step);
  void reduce_norm();
  void update();
  void updated();  // shards of the weights
  void update_expert_biases();

  Rank& rank_;
  StepActions actions_;
  Staging staging_;
  std::vector<MicrobatchParameters*> microbatch_parameters_;  // device, by column
  Mode mode_ = Mode::kTrain;                                  // of the step under way
  Phase phase_ = Phase::kEager;                               // of its eager verbs
  enum class WarmUp : std::uint8_t { kAhead, kUnderWay, kDone } warm_up_ = WarmUp::kAhead;
  std::int64_t warm_up_steps_ = 0;
  bool runs_eagerly_ = false;
  bool broken_off_ = false;  // the last step ended by an exception: what it staged may still be read
  int pending_ = 0;
  std::function<bool(std::int64_t)> times_copies_;
  std::optional<std::size_t> driver_bytes_;
  Event* before_update_ = nullptr;  // of hold_update(), until it was waited for
  const StepPlans* plans_ = nullptr;
  bool shares_units_ = false;
  ExpertRoom evaluation_needed_;
  GraphSignature fixed_;  // of the run: the list, the plan, sizes
  std::vector<std::size_t> action_entries_;
};

}  // namespace megalith

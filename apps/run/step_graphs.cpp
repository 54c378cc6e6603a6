#include "apps/run/step_graphs.h"

#include <fmt/format.h>

#include <memory>

#include "apps/config/memory_options.h"
#include "apps/config/training_options.h"
#include "core/base/code_of.h"
#include "core/base/digest.h"
#include "core/ops/gemm/gemm_algorithms_cuda.h"

namespace megalith {

namespace {

// Scope in which attention writes zeros if its plan exists: it is most of the time of a long microbatch.
struct OnlySetUp {
  explicit OnlySetUp(Stream& on) : stream(on.cuda()) {
    if (stream != nullptr) stream->only_set_up(true);
  }
  ~OnlySetUp() {
    if (stream != nullptr) stream->only_set_up(false);
  }
  OnlySetUp(const OnlySetUp&) = delete;
  OnlySetUp& operator=(const OnlySetUp&) = delete;

  CudaStream* stream;
};

// Pass over a list that acts only on the host: messages and copies are rehearsed; streams of verbs capture their work
// and drop it.
class DroppedPass {
 public:
  explicit DroppedPass(Rank& rank) : rank_(rank) {
    const RankStreams& streams = rank.streams;
    for (const auto* side : {&streams.tensor, &streams.context, &streams.dispatch})
      if (*side) sides_.push_back(side->get());
    rehearse(true);
  }
  ~DroppedPass() {
    end();
    rehearse(false);
    rank_.memory.arena.begin_step();  // eager work has places by use, which the pass has counted
    if (rank_.offload) rank_.offload->host.begin_step();
  }
  DroppedPass(const DroppedPass&) = delete;
  DroppedPass& operator=(const DroppedPass&) = delete;

  // Calls `act`; an error drops all graphs and reports the action.
  template <class Act>
  void run(const Action& action, const Act& act) {
    if (graph_ == nullptr) {
      graph_ = std::make_unique<Graph>("work outside of graphs");
      graph_->begin_dropped(rank_.streams.compute, sides_);
    }
    try {
      act();
    } catch (const std::exception& error) {
      const std::string what = graph_->name(), op(graph_->last_op());
      end();
      rank_.graphs->fail_capture(what, action, op, error);
    }
  }
  // Ends the pass; the streams run again.
  void end() { graph_.reset(); }

 private:
  void rehearse(bool on) {
    rank_.transfer.rehearse(on);
    if (rank_.offload) rank_.offload->transfer.rehearse(on);
  }

  Rank& rank_;
  std::vector<Stream*> sides_;
  std::unique_ptr<Graph> graph_;
};

// Carries out an action that no graph holds.
void pass_ahead(Rank& rank, const Action& action, const CarryOut& carry_out, DroppedPass& dropped) {
  if (is_of_unit(action.kind)) {
    dropped.end();
    if (action.kind != ActionKind::kGatherInstances) carry_out(action);  // of shards that no update has changed
    return;
  }
  if (!is_of_microbatch(action.kind)) return;
  const bool is_verb = action.segment >= 0;
  const auto call_hooks = [&](HookPoint point) {
    if (rank.runner.entry(action.segment).hooks.size(point) == 0) return;
    dropped.end();
    rank.runner.run_hooks(point, action, Phase::kCaptureAhead);
  };
  if (is_verb) call_hooks(before(verb_of(action.kind)));
  dropped.run(action, [&] { is_verb ? rank.runner.run_verb(action) : carry_out(action); });
  if (is_verb) call_hooks(after(verb_of(action.kind)));
}

}  // namespace

// Evaluations, steps that --trace records and repeated steps run eagerly; so do the steps ahead of the first capture,
// in which libraries set themselves up.
Verbs WarmUp::next_step() {
  if (rank_.graphs == nullptr) return Verbs::kEager;
  if (steps_ < rank_.options.memory.cuda_graph_warmup_steps) {
    ++steps_;
    pass(false);
    return Verbs::kWarmUp;
  }
  if (state_ != State::kDone) pass(true);
  return runs_eagerly_ ? Verbs::kEager : Verbs::kGraphs;
}

void WarmUp::pass(bool ends) {
  const auto call = [](const char* point, const std::vector<std::function<void()>>& hooks) {
    for (const auto& hook : hooks) {
      try {
        hook();
      } catch (const std::exception& error) {
        fail({.code = code_of(error),
              .subject = fmt::format("hook {}: {}", point, error.what()),
              .remedy = "fix the hook",
              .show_place = false});
      }
    }
  };
  if (state_ == State::kAhead) call("pre_warmup", rank_.warm_up_hooks.before);
  if (ends && state_ != State::kDone) call("post_warmup", rank_.warm_up_hooks.after);
  state_ = ends ? State::kDone : State::kUnderWay;
}

void run_libraries(Rank& rank, const StepActions& actions,
                   const std::function<void(Mode, const std::vector<Action>&)>& run) {
  const auto run_first_microbatch = [&](Mode mode, const std::vector<Action>& list) {
    const OnlySetUp only_set_up(rank.streams.compute);
    std::vector<Action> first;
    for (const Action& action : list) {
      const bool begins = action.kind == ActionKind::kBeginStep || action.kind == ActionKind::kZeroGradients;
      if (begins || (is_of_microbatch(action.kind) && action.microbatch == 0)) first.push_back(action);
    }
    if (rank.units.sharded) {
      UnshardPoints units = rank.units.points;
      units.ahead = actions.units_ahead;
      first = insert_unshards(first, units);
    }
    run(mode, first);
    if (rank.units.sharded) rank.units.sharded->finish_sums();
    rank.buckets.gatherer->wait_for_all();
    rank.streams.compute.synchronize();
    if (!rank.units.sharded) return;
    rank.streams.unshard->synchronize();
    rank.units.sharded->reset();  // weights may be loaded next
  };
  rank.transfer.rehearse(true);
  run_first_microbatch(Mode::kTrain, actions.train);
  if (rank.options.train.evaluates()) run_first_microbatch(Mode::kEval, actions.evaluate);
  const std::vector<Communicator*> groups = groups_of_verbs(rank);
  bool rehearses = false;
  for (Communicator* group : groups) rehearses = (rank.graphs && group->rehearse_captures(true)) || rehearses;
  if (rehearses) run_first_microbatch(Mode::kTrain, actions.train);
  for (Communicator* group : groups) group->rehearse_captures(false);
  rank.transfer.rehearse(false);
}

GraphSignature graph_signature(const Rank& rank, GraphSignature now) {
  const auto fold_in = [&now](const void* address) { fold(now.addresses, reinterpret_cast<std::uintptr_t>(address)); };
  const StepMemory& step = rank.step;
  fold_in(rank.memory.arena.block());
  fold_in(step.parameters);
  for (const Tensor& tensor : {step.sums, step.expert_counts, step.balance_counts, step.room_needed, step.rows_sent,
                               rank.model.gpt.parameters->buffer_values()})
    fold_in(tensor.data);
  for (const ParameterUnit& unit : rank.model.gpt.parameters->units()) {
    fold_in(unit.weight_shard.data);
    fold_in(unit.grad_shard.data);
    for (const Parameter* parameter : unit.parameters) {  // of units in slots below
      if (unit.resident_weights) fold_in(parameter->weight.data);
      if (unit.resident_gradients) fold_in(parameter->main_grad.data);
    }
  }
  if (rank.units.sharded) fold(now.addresses, rank.units.sharded->digest());
  CudaStream* const stream = rank.ctx.compute.cuda();
  now.gemms = stream == nullptr ? 0 : gemm_algorithms(*stream).version();
  now.hooks = digest_of_hooks(rank.runner);
  return now;
}

// Captures all graphs in a pass ahead of the step's first message. Making a graph executable may wait for all work of
// the device, including a posted receive whose sender waits for this stage. Only hooks and units act in the pass,
// around captures as around verbs of a step; other work is also captured, and dropped.
void capture_ahead(Rank& rank, const std::vector<Action>& actions, const CarryOut& carry_out) {
  rank.drain();
  try {
    DroppedPass dropped(rank);
    for (std::size_t i = 0; i < actions.size();) {
      if (const GraphRun* const run = rank.graphs->run_at(i)) {
        dropped.end();
        rank.graphs->capture_ahead(actions, *run);
        i += run->count;
      } else {
        pass_ahead(rank, actions[i++], carry_out, dropped);
      }
    }
  } catch (...) {
    rank.graphs->drop();
    throw;
  }
  rank.synchronize();
}

}  // namespace megalith

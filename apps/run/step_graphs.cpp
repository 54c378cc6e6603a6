// Of a step: what is run before the first one, which of them capture and replay, by what graphs know it again, and what
// is captured ahead.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "apps/config/memory_options.h"
#include "apps/config/training_options.h"
#include "apps/run/step.h"
#include "core/base/code_of.h"
#include "core/base/digest.h"
#include "core/ops/gemm/gemm_algorithms_cuda.h"

namespace megalith {

namespace {

// While it lives, attention leaves zeros where its plan is made already: over long sequences it is nearly all of a
// microbatch.
class OnlySetUp {
 public:
  explicit OnlySetUp(Stream& stream) : stream_(stream.cuda()) { set(true); }
  ~OnlySetUp() { set(false); }
  OnlySetUp(const OnlySetUp&) = delete;
  OnlySetUp& operator=(const OnlySetUp&) = delete;

 private:
  void set(bool on) {
    if (stream_ != nullptr) stream_->only_set_up(on);
  }
  CudaStream* stream_;
};

}  // namespace

// Work of a list that has its effect on the host alone: the streams that verbs enqueue on capture it, and drop it.
class DroppedWork {
 public:
  explicit DroppedWork(Rank& rank) : rank_(rank) {
    const RankStreams& streams = rank.streams;
    for (const auto* side : {&streams.tensor, &streams.context, &streams.dispatch})
      if (*side) sides_.push_back(side->get());
  }

  // An error drops all graphs and names the action.
  template <class Act>
  void run(const Action& action, const Act& act) {
    if (graph_ == nullptr) {
      graph_ = std::make_unique<Graph>("what no graph holds");
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
  // From here on the streams run again.
  void end() { graph_.reset(); }

 private:
  Rank& rank_;
  std::vector<Stream*> sides_;
  std::unique_ptr<Graph> graph_;
};

// Evaluations, steps that --trace records and those that are repeated run eagerly; so do the ones before the first
// capture, in which libraries set themselves up.
Step::Verbs Step::verbs_of_next_step() {
  if (rank_.graphs == nullptr) return Verbs::kEager;
  if (warm_up_steps_ < rank_.options.memory.cuda_graph_warmup_steps) {
    ++warm_up_steps_;
    pass_warm_up(false);
    return Verbs::kWarmUp;
  }
  if (warm_up_ != WarmUp::kDone) pass_warm_up(true);
  return runs_eagerly_ ? Verbs::kEager : Verbs::kGraphs;
}

void Step::warm_up() {
  const BlankSamples samples(rank_.config, 0, 1);  // of which the first is run
  const auto run_first_microbatch = [&](Mode mode, const std::vector<Action>& actions) {
    const OnlySetUp only_set_up(rank_.streams.compute);
    std::vector<Action> first;
    for (const Action& action : actions) {
      const bool begins = action.kind == ActionKind::kBeginStep || action.kind == ActionKind::kZeroGradients;
      if (begins || (is_of_microbatch(action.kind) && action.microbatch == 0)) first.push_back(action);
    }
    if (rank_.units.sharded) {
      UnshardPoints units = rank_.units.points;
      units.ahead = actions_.units_ahead;
      first = insert_unshards(first, units);
    }
    run(mode, Verbs::kWarmUp, &samples.input, first);
    if (rank_.units.sharded) rank_.units.sharded->finish_sums();
    rank_.buckets.gatherer->wait_for_all();
    rank_.streams.compute.synchronize();
    if (!rank_.units.sharded) return;
    rank_.streams.unshard->synchronize();
    rank_.units.sharded->reset();  // weights may be loaded next
  };
  pass_warm_up(false);
  rank_.transfer.rehearse(true);
  run_first_microbatch(Mode::kTrain, actions_.train);
  if (rank_.options.train.evaluates()) run_first_microbatch(Mode::kEval, actions_.evaluate);
  const std::vector<Communicator*> groups = groups_of_verbs(rank_);
  bool rehearses = false;
  for (Communicator* group : groups) rehearses = (rank_.graphs && group->rehearse_captures(true)) || rehearses;
  if (rehearses) run_first_microbatch(Mode::kTrain, actions_.train);
  for (Communicator* group : groups) group->rehearse_captures(false);
  rank_.transfer.rehearse(false);
  if (rank_.graphs == nullptr) pass_warm_up(true);
}

void Step::end_warm_up() {
  if (warm_up_ == WarmUp::kUnderWay) pass_warm_up(true);
}

void Step::pass_warm_up(bool ends) {
  const auto call = [](const char* point, const std::vector<std::function<void()>>& hooks) {
    for (const auto& hook : hooks) {
      try {
        hook();
      } catch (const std::exception& error) {
        fail({.code = code_of(error),
              .subject = fmt::format("hook {}: {}", point, error.what()),
              .remedy = "mend the hook",
              .show_place = false});
      }
    }
  };
  if (warm_up_ == WarmUp::kAhead) call("pre_warmup", rank_.warm_up_hooks.before);
  if (ends && warm_up_ != WarmUp::kDone) call("post_warmup", rank_.warm_up_hooks.after);
  warm_up_ = ends ? WarmUp::kDone : WarmUp::kUnderWay;
}

GraphSignature Step::signature() {
  GraphSignature now = fixed_;
  const auto fold_in = [&now](const void* address) { fold(now.addresses, reinterpret_cast<std::uintptr_t>(address)); };
  fold_in(rank_.memory.arena.block());
  fold_in(rank_.step.parameters);
  fold_in(rank_.step.sums.data);
  fold_in(rank_.step.expert_counts.data);
  fold_in(rank_.step.balance_counts.data);
  fold_in(rank_.step.room_needed.data);
  fold_in(rank_.step.rows_sent.data);
  fold_in(rank_.model.gpt.parameters->buffer_values().data);
  for (const MicrobatchParameters* parameters : microbatch_parameters_) fold_in(parameters);
  for (const ParameterUnit& unit : rank_.model.gpt.parameters->units()) {
    fold_in(unit.weight_shard.data);
    fold_in(unit.grad_shard.data);
    for (const Parameter* parameter : unit.parameters) {  // of those in slots below
      if (unit.resident_weights) fold_in(parameter->weight.data);
      if (unit.resident_gradients) fold_in(parameter->main_grad.data);
    }
  }
  if (rank_.units.sharded) fold(now.addresses, rank_.units.sharded->digest());
  now.microbatches = staging_.last().first_samples.size();
  CudaStream* const stream = rank_.streams.compute.cuda();
  now.gemms = stream == nullptr ? 0 : gemm_algorithms(*stream).version();
  now.hooks = digest_of_hooks(rank_.runner);
  return now;
}

// To make a captured graph executable may wait for all that the device does: for a receive that was posted, whose
// sender waits for this stage. So where stages send each other messages, all graphs are captured before the step's
// first one, in a pass over the list. Only hooks and units act in it, around the captures as around the verbs of a
// step; what belongs to no graph is captured too, and dropped.
void Step::capture_ahead(const std::vector<Action>& actions) {
  rank_.drain();
  const auto rehearse = [this](bool on) {
    rank_.transfer.rehearse(on);
    if (rank_.offload) rank_.offload->transfer.rehearse(on);
  };
  rehearse(true);
  const auto end = [&] {
    rehearse(false);
    rank_.memory.arena.begin_step();  // what runs eagerly has places by use, which the pass has counted
    if (rank_.offload) rank_.offload->host.begin_step();
  };
  try {
    DroppedWork dropped(rank_);
    for (std::size_t i = 0; i < actions.size();) {
      if (const Run* const run = rank_.graphs->run_at(i)) {
        dropped.end();
        rank_.graphs->capture_ahead(actions, *run);
        i += run->count;
      } else {
        pass_ahead(actions[i++], dropped);
      }
    }
  } catch (...) {
    rank_.graphs->drop();
    end();
    throw;
  }
  end();
  rank_.synchronize();
}

void Step::pass_ahead(const Action& action, DroppedWork& dropped) {
  if (is_of_unit(action.kind)) {
    dropped.end();
    if (action.kind != ActionKind::kGatherInstances) carry_out(action);  // of shards that no update has changed
    return;
  }
  if (!is_of_microbatch(action.kind)) return;
  const bool is_verb = action.segment >= 0;
  const auto call_hooks = [&](HookPoint point) {
    if (rank_.runner.entry(action.segment).hooks.size(point) == 0) return;
    dropped.end();
    rank_.runner.run_hooks(point, action, Phase::kCaptureAhead);
  };
  if (is_verb) call_hooks(before(verb_of(action.kind)));
  dropped.run(action, [&] { is_verb ? rank_.runner.run_verb(action) : carry_out(action); });
  if (is_verb) call_hooks(after(verb_of(action.kind)));
}

}  // namespace megalith

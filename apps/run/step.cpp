#include "apps/run/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "apps/config/training_options.h"
#include "apps/run/rank_actions.h"
#include "core/base/seconds_since.h"
#include "core/device/trace.h"
#include "core/ops/elementwise/elementwise.h"
#include "parallel/pipeline_parallel/lowering.h"

namespace megalith {

Step::Step(Rank& rank)
    : rank_(rank),
      actions_(step_actions(rank)),
      staging_(rank.memory.pool.device(), rank.config,
               {.part = rank.layers.context.part(rank.config.seq_length),
                .sample = document_sharing(rank),
                .per_token_loss = rank.options.train.calculate_per_token_loss},
               report_sizes(rank)),
      warm_up_(rank) {
  const auto columns = static_cast<std::size_t>(std::max(num_columns(actions_.train), num_columns(actions_.evaluate)));
  void* const memory = rank_.memory.pool.allocate(columns * sizeof(MicrobatchParameters), MemoryCategory::kOther,
                                                  "microbatch parameters");
  microbatch_parameters_ = {static_cast<MicrobatchParameters*>(memory), columns};
}

void Step::use(const StepPlans& plans) {
  if (rank_.graphs) rank_.graphs->check_hooks(actions_.train);
  fixed_ = {.actions = digest_of(actions_.train),
            .plan = digest_of(plans.train),
            .addresses = reinterpret_cast<std::uintptr_t>(microbatch_parameters_.data()),
            .sequences = static_cast<std::uint64_t>(rank_.config.sequences),
            .seq_length = static_cast<std::uint64_t>(rank_.config.rank_length())};
  const Arena& arena = rank_.memory.arena;
  use_arena(rank_, plans.largest(), driver_bytes_);
  if (rank_.offload) rank_.offload->host.use(plans.host);
  if (rank_.units.sharded && plans_ == nullptr) rank_.units.sharded->share();  // once
  plans_ = &plans;
  for (MemorySharing* group : sharing_groups(rank_))
    group->share_memory(arena.block(), arena.block_bytes(), 3 * digest_of(plans.train) + digest_of(plans.evaluate));
  rank_.transfer.share({{actions_.train, plans.train}, {actions_.evaluate, plans.evaluate}});
}

void Step::give_back() {
  require(pending_ == 0, "a step is pending: its memory cannot be released");
  drop_broken_off();
  rank_.wait_for_parameters();
  rank_.drain();
  if (rank_.graphs) rank_.graphs->drop();
  for (MemorySharing* group : sharing_groups(rank_)) group->unshare_memory();
  rank_.transfer.unshare();
  rank_.memory.arena.give_back();
  driver_bytes_.reset();
  rank_.memory.pool.free_cached();  // memory that other users may need
  if (!rank_.offload) return;
  rank_.offload->host.give_back();
  rank_.offload->pool.free_cached();
}

void Step::set_microbatches(std::int64_t microbatches) {
  require(rank_.memory.arena.block_bytes() == 0, "the step's memory was not released");
  if (rank_.config.microbatches == microbatches) return;
  rank_.config.microbatches = microbatches;
  actions_ = step_actions(rank_);
  require(num_columns(actions_.train) <= std::ssize(microbatch_parameters_),
          "a step with fewer microbatches has more of them in flight");
  if (rank_.units.sharded) rank_.units.sharded->reset();  // the next list may start from other gathers
}

// Carries out an action, by its kind. Gradients are reduced in kReduce.
void Step::carry_out(const Action& action) {
  PipelineTransfer& transfer = rank_.transfer;
  RankBuckets& buckets = rank_.buckets;
  ShardedUnits* const units = rank_.units.sharded.get();
  RankOffload* const offload = rank_.offload.get();
  const Parameter* const words = rank_.model.gpt.words;
  Stream& compute = rank_.streams.compute;
  switch (action.kind) {
    case ActionKind::kBeginStep: return begin_step(rank_, staging_.last());
    case ActionKind::kZeroGradients: return zero_gradients(rank_);
    case ActionKind::kLoad:
      return load_microbatch(rank_, staging_.last(), action, mode_,
                             &microbatch_parameters_[static_cast<std::size_t>(action.column)]);
    case ActionKind::kForward:
    case ActionKind::kBackwardData:
    case ActionKind::kBackwardWeight: return rank_.runner.run(action, phase_);
    case ActionKind::kPostReceive: return transfer.post_receive(action);
    case ActionKind::kWaitReceive: return transfer.wait_receive(action);
    case ActionKind::kSend: return transfer.send(action);
    case ActionKind::kWaitSend: return transfer.wait_send(action);
    case ActionKind::kStartExchange: return rank_.runner.start_exchange(action);
    case ActionKind::kWaitExchange: return rank_.runner.wait_exchange(action);
    case ActionKind::kTieGradients: return tie_gradients(rank_);
    case ActionKind::kReduce: return buckets.reducer->reduce(action.item);
    case ActionKind::kFinishReduce: return finish_reduce(rank_);
    case ActionKind::kSumSharedGradients: return rank_.optimizer.shared_gradients.sum(compute);
    case ActionKind::kCopyTiedGradients: return copy_tied(rank_, compute, words->main_grad);
    case ActionKind::kReduceSums: return reduce_sums(rank_);
    case ActionKind::kReduceNorm: return reduce_norm(rank_);
    case ActionKind::kOptimizerStep:
      if (Event* read = std::exchange(before_update_, nullptr)) compute.wait(*read);
      return update_parameters(rank_, plans_ == nullptr ? ExpertRoom{} : plans_->room);
    case ActionKind::kGatherParameters: return buckets.gatherer->gather(action.item);
    case ActionKind::kCopyTiedWeights:
      return buckets.gatherer->add_to(action.item, [&](Stream& stream) { copy_tied(rank_, stream, words->weight); });
    case ActionKind::kWaitParameters: return buckets.gatherer->wait(action.item);
    case ActionKind::kUnshard: return units->unshard(action.item);
    case ActionKind::kWaitUnshard: return units->wait_unshard(action.item);
    case ActionKind::kReshard: return units->reshard(action.item);
    case ActionKind::kBindGradients: return units->bind_gradients(action.item);
    case ActionKind::kReduceShard: return units->reduce_shard(action.item);
    case ActionKind::kSumInstances: return units->sum_instances(action.item);
    case ActionKind::kGatherInstances: return units->gather_instances(action.item);
    case ActionKind::kOffload: return offload->transfer.offload(action);
    case ActionKind::kWaitOffload: return offload->transfer.wait_offload(action);
    case ActionKind::kReload: return offload->transfer.reload(action);
    case ActionKind::kWaitReload: return offload->transfer.wait_reload(action);
  }
}

// Drops a broken step. Its updated shards may not be gathered on all ranks, so that they are gathered once more.
void Step::drop_broken_off() {
  if (!std::exchange(broken_off_, false)) return;
  drop_step(rank_);
  staging_.drop_last();
  shards_updated(rank_);
  for (const Action& action : actions_.train) {
    if (action.kind == ActionKind::kGatherParameters || action.kind == ActionKind::kCopyTiedWeights ||
        action.kind == ActionKind::kGatherInstances)
      carry_out(action);
  }
  rank_.wait_for_parameters();
}

void Step::run(Mode mode, Verbs verbs, const StepInput* input, const std::vector<Action>& actions,
               const std::function<bool(const Action&)>& proceeds) {
  require(pending_ < 2, "two steps are pending: read a result before the next step");
  drop_broken_off();
  Stream& compute = rank_.streams.compute;
  if (input != nullptr) staging_.stage(compute, *input);
  broken_off_ = true;
  mode_ = mode;
  if (plans_ != nullptr) rank_.memory.arena.use(mode == Mode::kTrain ? plans_->train : plans_->evaluate);
  rank_.memory.arena.begin_step();
  rank_.transfer.begin(mode == Mode::kTrain ? 0 : 1);  // of the lists in use()
  if (rank_.offload) rank_.offload->host.begin_step();
  StagedStep& step = staging_.last();
  compute.record(step.begun);
  action_entries_.clear();
  const Timeline* const timeline = compute.instruments().timeline;
  phase_ = verbs == Verbs::kWarmUp ? Phase::kWarmUp : Phase::kEager;
  GraphedRunner* const graphs = verbs == Verbs::kGraphs ? rank_.graphs.get() : nullptr;
  if (rank_.units.sharded) rank_.units.sharded->begin(actions_.units_ahead);
  if (graphs != nullptr) {
    fixed_.microbatches = step.first_samples.size();
    graphs->begin_step(actions, graph_signature(rank_, fixed_));
    if (graphs->stats().graphs < graphs->plan().graphs && rank_.transfer.has_peers())
      capture_ahead(rank_, actions, [this](const Action& action) { carry_out(action); });
  }
  step.times_copies = rank_.offload && mode == Mode::kTrain && times_copies_ && times_copies_(step.iteration);
  step.clock.begin(mode == Mode::kTrain && verbs != Verbs::kWarmUp && parts_level_ ? parts_level_(step.iteration) : 0);
  if (rank_.offload) rank_.offload->transfer.begin(graphs != nullptr, step.times_copies);
  for (std::size_t i = 0; i < actions.size();) {
    if (proceeds && !proceeds(actions[i])) break;
    if (timeline != nullptr) action_entries_.push_back(timeline->entries().size());
    const GraphRun* const together = graphs == nullptr ? nullptr : graphs->run_at(i);
    step.clock.before(actions[i], actions[i + (together == nullptr ? 1 : together->count) - 1], compute);
    if (together != nullptr) {
      graphs->run(actions, *together);
      step.clock.after(compute);
      i += together->count;
      continue;
    }
    const Action& action = actions[i++];
    Trace* const trace = action.segment < 0 ? compute.instruments().trace : nullptr;  // SegmentRunner records verbs
    const TraceRange range(compute, trace, [&] { return to_string(action); });
    carry_out(action);
    step.clock.after(compute);
  }
  broken_off_ = false;
}

bool Step::train(const StepInput* input, const std::function<bool()>& updates) {
  const auto start = std::chrono::steady_clock::now();
  const bool follows = pending_ > 0;
  double asked = 0;
  bool dropped = false;
  const auto proceeds = [&](const Action& action) {
    if (action.kind != ActionKind::kOptimizerStep || !updates) return true;
    const auto before = std::chrono::steady_clock::now();
    ++pending_;  // this step, as read_result() counts it
    try {
      dropped = !updates();
    } catch (...) {
      --pending_;
      throw;
    }
    --pending_;
    asked += seconds_since(before);
    return !dropped;
  };
  Stream& compute = rank_.streams.compute;
  const ActivationTransfer::Stats moved = rank_.offload ? rank_.offload->transfer.stats() : ActivationTransfer::Stats{};
  {
    const TraceRange range(compute, compute.instruments().trace, [&] {
      return fmt::format("step {}", input ? input->iteration : staging_.last().iteration);
    });
    run(Mode::kTrain, warm_up_.next_step(), input, actions_.train, proceeds);
  }
  if (dropped) {
    compute.synchronize();
    staging_.drop_last();
    return false;
  }
  StagedStep& step = staging_.last();
  step.follows = follows;
  enqueue_report(rank_, step, moved);
  step.enqueue_seconds = seconds_since(start) - asked;
  ++pending_;
  return true;
}

StepResult Step::read_result() {
  require(pending_ > 0, "no step is pending");
  --pending_;
  return read_report(rank_, staging_.ago(pending_), staging_.ago(pending_ + 1));
}

Evaluation Step::evaluate(const StepInput& input) {
  require(pending_ == 0, "a training step is pending: read its result before an evaluation");
  run(Mode::kEval, Verbs::kEager, &input, actions_.evaluate);
  return report_evaluation(rank_, staging_.last());
}

void Step::repeat(const StepInput& input, const std::function<void(const Action&)>& before) {
  require(pending_ == 0, "a training step is pending: read its result before it is repeated");
  drop_broken_off();  // streams other than compute may still use the arena
  const Arena& arena = rank_.memory.arena;
  const auto floats = static_cast<std::int64_t>(arena.block_bytes() / sizeof(float));
  launch(rank_.streams.compute, Fill{.x = Tensor(arena.block(), DType::kFp32, {floats}), .value = 0});
  poison_memory(rank_, false);
  run(Mode::kTrain, Verbs::kEager, &input, actions_.train, [&](const Action& action) {
    if (action.kind == ActionKind::kOptimizerStep) return false;
    before(action);
    return true;
  });
  poison_memory(rank_, rank_.options.train.check_hazards);
  if (rank_.offload) rank_.offload->transfer.synchronize();
  rank_.streams.communication.synchronize();
  rank_.transfer.synchronize();
  rank_.streams.compute.synchronize();
  staging_.drop_last();
}

void Step::warm_up() {
  const BlankSamples samples(rank_.config, 0, 1);  // of which the first runs
  warm_up_.pass(false);
  run_libraries(rank_, actions_, [&](Mode mode, const std::vector<Action>& actions) {
    run(mode, Verbs::kWarmUp, &samples.input, actions);
  });
  if (rank_.graphs == nullptr) warm_up_.pass(true);
}

}  // namespace megalith

#include "apps/run/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <utility>

#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "core/base/seconds_since.h"
#include "core/device/copy.h"
#include "core/device/trace.h"
#include "core/ops/elementwise/elementwise.h"
#include "core/ops/optim/grad_norm.h"
#include "offload/lowering.h"

namespace megalith {

namespace {

using Clock = std::chrono::steady_clock;

// NCCL may add the replicas in another order for the first stage than for the last, whose copies of a tied embedding
// must stay alike. The last stage then takes what the first has: gradients, or weights where each updates shards.
bool copies_tied(const Rank& rank) {
  return rank.groups.embedding && rank.streams.compute.device() == DeviceType::kCuda && rank.groups.replicas.size() > 2;
}

// Weight gradients of experts, beside the way back of what their dispatch sends.
std::set<int> weights_behind(const Rank& rank) {
  std::set<int> behind;
  if (!rank.layers.dispatcher || !rank.layers.dispatcher->waits_behind()) return behind;
  for (int s = 1; s < rank.runner.num_segments(); ++s)
    if (rank.runner.entry(s - 1).module == SegmentModule::kMoeDispatch) behind.insert(s);
  return behind;
}

}  // namespace

StepActions step_actions(const Rank& rank) {
  const GptModel& gpt = rank.model.gpt;
  const ParallelOptions& parallel = rank.options.parallel;
  const bool shards = parallel.shards_optimizer();
  ReducePoints points{.segments_of_bucket = rank.buckets.reduced_segments,
                      .tied_segment = -1,
                      .tied_across_stages = rank.groups.embedding != nullptr,
                      .sums_shared = rank.layers.tensor.split().ranks > 1,
                      .copies_tied = copies_tied(rank) && !shards};
  if (rank.options.ties_embeddings() && gpt.words != nullptr)
    points.tied_segment = gpt.words->is_copy ? rank.runner.num_segments() - 1 : 0;  // the head, or the embedding
  GatherPoints gathers{.segments_of_bucket = {}, .overlap = parallel.overlap_param_gather};
  // A tied head reads the words too, but after the embedding, which is in this list then.
  if (shards) gathers.segments_of_bucket = rank.buckets.gathered_segments;
  if (shards && copies_tied(rank)) gathers.tied_bucket = rank.buckets.words;
  const Schedule schedule = rank.config.schedule(), evaluation = rank.config.evaluation_schedule();
  if (!rank.is_plan()) verify(schedule);  // a plan's is simulated
  StepActions actions{.train = lower_training_step(insert_messages(schedule, rank.stage()), gpt.part_segments, points,
                                                   gathers, weights_behind(rank)),
                      .evaluate = lower_evaluation_step(insert_messages(forwards_of(evaluation), rank.stage()),
                                                        gpt.part_segments, gathers)};
  if (rank.units.sharded) {
    UnshardPoints units = rank.units.points;
    units.ahead = units_ahead(actions.train, units);
    for (std::vector<Action>* list : {&actions.train, &actions.evaluate}) *list = insert_unshards(*list, units);
    actions.units_ahead = std::move(units.ahead);
  }
  if (rank.offload) actions.train = insert_offloads(actions.train, rank.offload->points);
  return actions;
}

std::string printed(const std::vector<Action>& actions, const GptModel& gpt, const std::vector<int>& graph_of_each) {
  std::string text;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    text += fmt::format("{:>5}  {}", i, to_string(actions[i]));
    if (actions[i].segment >= 0)
      text += fmt::format(" ({})", gpt.segments[static_cast<std::size_t>(actions[i].segment)].name);
    if (graph_of_each[i] >= 0) text += fmt::format(" graph {}", graph_of_each[i]);
    text += '\n';
  }
  return text;
}

Step::Step(Rank& rank)
    : rank_(rank),
      actions_(step_actions(rank)),
      staging_(rank.memory.pool.device(), rank.config, rank.layers.context.part(rank.config.seq_length),
               report_sizes(rank)) {
  const int columns = std::max(num_columns(actions_.train), num_columns(actions_.evaluate));
  auto* const parameters = static_cast<MicrobatchParameters*>(
      rank_.memory.pool.allocate(static_cast<std::size_t>(columns) * sizeof(MicrobatchParameters),
                                 MemoryCategory::kOther, "microbatch parameters"));
  for (int column = 0; column < columns; ++column) microbatch_parameters_.push_back(parameters + column);
}

void Step::use(const StepPlans& plans) {
  if (rank_.graphs) rank_.graphs->check_hooks(actions_.train);
  plans_ = &plans;
  fixed_ = {.actions = digest_of(actions_.train),
            .plan = digest_of(plans.train),
            .sequences = static_cast<std::uint64_t>(rank_.config.sequences),
            .seq_length = static_cast<std::uint64_t>(rank_.config.rank_length())};
  const Arena& arena = rank_.memory.arena;
  use_arena(plans.largest());
  if (rank_.offload) rank_.offload->host.use(plans.host);
  if (rank_.units.sharded && !std::exchange(shares_units_, true)) rank_.units.sharded->share();
  for (MemorySharing* group : sharing_groups(rank_))
    group->share_memory(arena.block(), arena.block_bytes(), 3 * digest_of(plans.train) + digest_of(plans.evaluate));
}

void Step::give_back() {
  require(pending_ == 0, "a step is pending: its memory cannot be given back");
  drop_broken_off();
  rank_.wait_for_parameters();
  rank_.drain();
  if (rank_.graphs) rank_.graphs->drop();
  for (MemorySharing* group : sharing_groups(rank_)) group->unshare_memory();
  rank_.memory.arena.give_back();
  driver_bytes_.reset();
  rank_.memory.pool.free_cached();  // others than the pool may need it
  if (!rank_.offload) return;
  rank_.offload->host.give_back();
  rank_.offload->pool.free_cached();
}

void Step::set_microbatches(std::int64_t microbatches) {
  require(rank_.memory.arena.block_bytes() == 0, "the step's memory was not given back");
  if (rank_.config.microbatches == microbatches) return;
  rank_.config.microbatches = microbatches;
  actions_ = step_actions(rank_);
  require(num_columns(actions_.train) <= std::ssize(microbatch_parameters_),
          "a step with fewer microbatches has more of them in flight");
  if (rank_.units.sharded) rank_.units.sharded->reset();  // the next list may find other gathers started
}

// What each kind of action does. Gradients are reduced in kReduce.
void Step::carry_out(const Action& action) {
  Stream& compute = rank_.streams.compute;
  PipelineTransfer& transfer = rank_.transfer;
  RankBuckets& buckets = rank_.buckets;
  const Parameter* const words = rank_.model.gpt.words;
  switch (action.kind) {
    case ActionKind::kBeginStep: return begin_step();
    case ActionKind::kZeroGradients: return zero_gradients();
    case ActionKind::kLoad: return load(action);
    case ActionKind::kForward:
    case ActionKind::kBackwardData:
    case ActionKind::kBackwardWeight: return rank_.runner.run(action, phase_);
    case ActionKind::kPostReceive: return transfer.post_receive(action);
    case ActionKind::kWaitReceive: return transfer.wait_receive(action);
    case ActionKind::kSend: return transfer.send(action);
    case ActionKind::kWaitSend: return transfer.wait_send(action);
    case ActionKind::kTieGradients: return tie_gradients();
    case ActionKind::kReduce: return buckets.reducer->reduce(action.item);
    case ActionKind::kFinishReduce: return finish_reduce();
    case ActionKind::kSumSharedGradients: return rank_.optimizer.shared_gradients.sum(compute);
    case ActionKind::kCopyTiedGradients: return copy_tied(compute, words->main_grad);
    case ActionKind::kReduceSums: return reduce_sums();
    case ActionKind::kReduceNorm: return reduce_norm();
    case ActionKind::kOptimizerStep: return update();
    case ActionKind::kGatherParameters: return buckets.gatherer->gather(action.item);
    case ActionKind::kCopyTiedWeights:
      return buckets.gatherer->add_to(action.item, [&](Stream& stream) { copy_tied(stream, words->weight); });
    case ActionKind::kWaitParameters: return buckets.gatherer->wait(action.item);
    case ActionKind::kUnshard: return rank_.units.sharded->unshard(action.item);
    case ActionKind::kWaitUnshard: return rank_.units.sharded->wait_unshard(action.item);
    case ActionKind::kReshard: return rank_.units.sharded->reshard(action.item);
    case ActionKind::kBindGradients: return rank_.units.sharded->bind_gradients(action.item);
    case ActionKind::kReduceShard: return rank_.units.sharded->reduce_shard(action.item);
    case ActionKind::kSumInstances: return rank_.units.sharded->sum_instances(action.item);
    case ActionKind::kGatherInstances: return rank_.units.sharded->gather_instances(action.item);
    case ActionKind::kOffload: return rank_.offload->transfer.offload(action);
    case ActionKind::kWaitOffload: return rank_.offload->transfer.wait_offload(action);
    case ActionKind::kReload: return rank_.offload->transfer.reload(action);
    case ActionKind::kWaitReload: return rank_.offload->transfer.wait_reload(action);
  }
}

void Step::zero_gradients() {
  rank_.model.gpt.parameters->zero_gradients(rank_.streams.compute);
  if (rank_.units.sharded) rank_.units.sharded->begin_sums();
}

void Step::begin_step() {
  const StagedStep& step = staging_.last();
  launch(rank_.streams.compute, Fill{.x = rank_.step.sums, .value = 0});
  const StepMemory& memory = rank_.step;
  for (const Tensor& counts : {memory.counts, memory.balance_counts, memory.room_needed, memory.moved_bytes})
    if (counts) launch(rank_.streams.compute, Fill{.x = counts, .value = 0});
  launch(rank_.streams.compute,
         WriteStepParameters{
             .iteration = step.iteration, .learning_rate = step.learning_rate, .parameters = rank_.step.parameters});
}

void Step::load(const Action& action) {
  const RunConfig& config = rank_.config;
  const StagedStep& step = staging_.last();
  const GptPart& part = rank_.model.parts[static_cast<std::size_t>(action.chunk)];
  const auto m = static_cast<std::size_t>(action.microbatch);
  rank_.memory.arena.begin_scope({.column = action.column, .segment = -1, .verb = kLoadScope});
  Microbatch microbatch{.mode = mode_,
                        .sequences = config.sequences,
                        .seq_length = config.rank_length(),
                        .part = rank_.layers.context.part(config.seq_length),
                        .parameters = microbatch_parameters_[static_cast<std::size_t>(action.column)],
                        .sums = rank_.step.sums,
                        .expert_counts = rank_.step.expert_counts,
                        .balance_counts = rank_.step.balance_counts,
                        .room_needed = rank_.step.room_needed,
                        .rows_sent = rank_.step.rows_sent};
  const auto copy = [&](const std::int32_t* from, const char* owner) {
    const Tensor to = rank_.ctx.empty({config.rank_tokens()}, DType::kInt32, owner);
    copy_from_host(rank_.streams.compute, to.data, from + action.microbatch * config.rank_tokens(), to.bytes());
    return to;
  };
  if (part.has_embedding) microbatch.tokens = copy(step.tokens, "tokens");
  if (part.has_head) microbatch.labels = copy(step.labels, "labels");
  launch(rank_.streams.compute,
         WriteMicrobatchParameters{.value = {.iteration = step.iteration,
                                             .first_sample = step.first_samples[m],
                                             .loss_scale = 1.0f / static_cast<float>(config.step_tokens())},
                                   .out = microbatch_parameters_[static_cast<std::size_t>(action.column)]});
  rank_.runner.begin(action.column, microbatch);
}

void Step::update() {
  if (Event* read = std::exchange(before_update_, nullptr)) rank_.streams.compute.wait(*read);
  const Tensor loss = rank_.step.sums.slice(0, index_of(StepSum::kLoss), 1);
  rank_.optimizer.adamw.update(rank_.streams.compute, loss, rank_.step.parameters, row_room());
  update_expert_biases();
  updated();
}

void Step::updated() {
  if (rank_.units.sharded) rank_.units.sharded->updated();
  rank_.buckets.gatherer->updated();  // after it: the communication stream waits for both at once
}

void Step::run(const Action& action) {
  Stream& compute = rank_.streams.compute;
  const bool is_verb = action.segment >= 0;  // SegmentRunner traces it by its segment's name
  const TraceRange range(compute, is_verb ? nullptr : compute.instruments().trace, [&] { return to_string(action); });
  carry_out(action);
}

// It may have updated shards that not all ranks have gathered. Gathered once more, others stay as they are.
void Step::drop_broken_off() {
  if (!std::exchange(broken_off_, false)) return;
  rank_.drain();
  rank_.buckets.reducer->reset();
  rank_.buckets.gatherer->reset();
  if (rank_.units.sharded) rank_.units.sharded->reset();
  if (rank_.offload) rank_.offload->transfer.reset();
  staging_.drop_last();
  updated();
  for (const Action& action : actions_.train) {
    if (action.kind == ActionKind::kGatherParameters || action.kind == ActionKind::kCopyTiedWeights ||
        action.kind == ActionKind::kGatherInstances)
      carry_out(action);
  }
  rank_.wait_for_parameters();
}

// `proceeds` is asked before each action; false ends the step there.
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
  if (rank_.offload) rank_.offload->host.begin_step();
  compute.record(staging_.last().begun);
  action_entries_.clear();
  const Timeline* const timeline = compute.instruments().timeline;
  phase_ = verbs == Verbs::kWarmUp ? Phase::kWarmUp : Phase::kEager;
  GraphedRunner* const graphs = verbs == Verbs::kGraphs ? rank_.graphs.get() : nullptr;
  if (rank_.units.sharded) rank_.units.sharded->begin(actions_.units_ahead);
  if (graphs != nullptr) {
    graphs->begin_step(actions, signature());
    if (graphs->stats().graphs < graphs->plan().graphs && rank_.transfer.has_peers()) capture_ahead(actions);
  }
  begin_copies(graphs != nullptr);
  for (std::size_t i = 0; i < actions.size();) {
    if (proceeds && !proceeds(actions[i])) break;
    if (timeline != nullptr) action_entries_.push_back(timeline->entries().size());
    const Run* const together = graphs == nullptr ? nullptr : graphs->run_at(i);
    if (together == nullptr) {
      run(actions[i++]);
    } else {
      graphs->run(actions, *together);
      i += together->count;
    }
  }
  broken_off_ = false;
}

bool Step::train(const StepInput* input, const std::function<bool()>& updates) {
  const auto start = Clock::now();
  const bool follows = pending_ > 0;
  double asked = 0;
  bool dropped = false;
  const auto proceeds = [&](const Action& action) {
    if (action.kind != ActionKind::kOptimizerStep || !updates) return true;
    const auto before = Clock::now();
    ++pending_;  // this one, as read_result() counts
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
    run(Mode::kTrain, verbs_of_next_step(), input, actions_.train, proceeds);
  }
  if (dropped) {
    compute.synchronize();
    staging_.drop_last();
    return false;
  }
  StagedStep& step = staging_.last();
  step.follows = follows;
  end_copies(moved, step);
  copy_to_host(compute, step.report, rank_.step.parameters, sizeof(StepParameters));
  if (const Tensor& counts = rank_.step.counts) {
    copy_to_host(compute, step.sums, rank_.step.sums.data, rank_.step.sums.bytes());
    copy_to_host(compute, step.counts, counts.data, counts.bytes());
  }
  copy_room(compute, rank_.step.room_needed, step);
  compute.record(step.reported);
  step.enqueue_seconds = seconds_since(start) - asked;
  ++pending_;
  return true;
}

float Step::evaluate(const StepInput& input) {
  require(pending_ == 0, "a training step is pending: read its result before an evaluation");
  run(Mode::kEval, Verbs::kEager, &input, actions_.evaluate);
  Stream& compute = rank_.streams.compute;
  StagedStep& step = staging_.last();
  copy_to_host(compute, &step.report->loss, rank_.step.sums.data, sizeof(float));
  copy_room(compute, rank_.step.room_needed, step);
  compute.record(step.reported);
  if (rank_.is_plan()) return 0;
  compute.synchronize_host(step.reported);
  Access access("read the evaluation's loss");
  access.add(&step.report->loss, sizeof(float), false);
  access.add(step.room_needed, 2 * sizeof(std::int32_t), false);
  compute.announce_host(access);
  evaluation_needed_ = {.arrived = step.room_needed[0], .rows = step.room_needed[1]};
  return step.report->loss / static_cast<float>(rank_.config.evaluation_tokens());
}

void Step::repeat(const StepInput& input, const std::function<void(const Action&)>& before) {
  require(pending_ == 0, "a training step is pending: read its result before it is repeated");
  drop_broken_off();  // other streams than compute may still use the arena
  const Arena& arena = rank_.memory.arena;
  const auto floats = static_cast<std::int64_t>(arena.block_bytes() / sizeof(float));
  launch(rank_.streams.compute, Fill{.x = Tensor(arena.block(), DType::kFp32, {floats}), .value = 0});
  ShardedUnits* const units = rank_.units.sharded.get();
  if (units != nullptr) units->poison_slots(false);
  if (rank_.offload) rank_.offload->transfer.poison(false);
  run(Mode::kTrain, Verbs::kEager, &input, actions_.train, [&](const Action& action) {
    if (action.kind == ActionKind::kOptimizerStep) return false;
    before(action);
    return true;
  });
  if (units != nullptr) units->poison_slots(rank_.options.train.check_hazards);
  if (rank_.offload) {
    rank_.offload->transfer.poison(rank_.options.train.check_hazards);
    rank_.offload->transfer.synchronize();
  }
  rank_.streams.communication.synchronize();
  rank_.transfer.synchronize();
  rank_.streams.compute.synchronize();
  staging_.drop_last();
}

}  // namespace megalith

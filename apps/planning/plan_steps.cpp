#include "apps/planning/plan_steps.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "apps/checkpoint/async_save.h"
#include "apps/config/checkpoint_options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/training_options.h"
#include "apps/cost/expert_rows.h"
#include "apps/planning/offload_choice.h"
#include "apps/run/step.h"
#include "core/device/short_ops.h"
#include "core/memory/live_bytes.h"
#include "graphs/held_buffers.h"
#include "offload/recorded_way.h"

namespace megalith {

namespace {

// Config with `microbatches` per training step and `evaluation` per evaluation.
RunConfig with_microbatches(RunConfig config, std::int64_t microbatches, std::int64_t evaluation) {
  config.microbatches = microbatches;
  config.evaluation_microbatches = evaluation;
  return config;
}

// Rank on the plan backend, and a step on blank samples.
struct Recording {
  Recording(const Options& options, const RunConfig& config, const Mesh& mesh, const OffloadPoints& offloaded)
      : rank(options, config, DeviceType::kPlan, mesh, {.timeline = &timeline}, 0, offloaded),
        step(rank),
        samples(config) {}

  Timeline timeline;
  Rank rank;
  Step step;
  BlankSamples samples;
};

// Number of concurrent ops: on a GPU the short ops of graphs overlap if they have separate memory.
std::int64_t concurrent_ops(const Options& options, const StepRecording& recording, const Timeline& timeline) {
  if (options.device != DeviceType::kCuda) return 0;
  double seconds = 0, ops = 0;
  for (const GraphRun& run : recording.runs.runs) {
    const std::size_t end = run.first + run.count;
    const std::size_t last = end < recording.entries.size() ? recording.entries[end] : timeline.entries().size();
    for (std::size_t i = recording.entries[run.first]; i < last; ++i) {
      const Timeline::Entry& entry = timeline.entries()[i];
      if (entry.kind != Timeline::Kind::kOp) continue;
      seconds += seconds_in_chain(entry.access, 1);
      ++ops;
    }
  }
  return ops > 0 && seconds <= kShortOp * ops ? kConcurrentOps : 0;
}

// Timeline as a forecast counts it.
Timeline counted(Timeline recorded, const Options& options, const RunConfig& config) {
  const std::optional<ExpertRows> rows = expert_rows(options, config);
  return rows ? with_expected_rows(recorded, *rows) : std::move(recorded);
}

// Recorded microbatches if one part runs each microbatch forward and backward ahead of the next. All but the first and
// the last are equal, and more add the same work in the same memory.
constexpr std::int64_t kRecordedOneByOne = 4;
constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

// Copies of offloaded activations may reach over several pairs of microbatches.
bool is_one_by_one(const Options& options, const PipelineLayout& pipeline) {
  return pipeline.placement.num_parts() == 1 && pipeline.kind != ScheduleKind::kGpipe &&
         !(pipeline.overlaps_exchanges && offloads(options));
}

// Layout of the arena. Sequential microbatches lose nothing with equal places, and are not all recorded.
ArenaPlanSpec layout_of(const Options& options, const RunConfig& config, bool searches) {
  return {.by_use = !is_one_by_one(options, config.pipeline), .searches = searches};
}

// Records a training step and plans its memory.
void plan_step(const Options& options, const RunConfig& config, Recording& recorded, StepRecording& recording) {
  recorded.step.train(recorded.samples.input);
  recorded.rank.wait_for_parameters();  // as the next step would; a plan of one step ends with no pending work
  recording.actions = recorded.step.actions().train;
  recording.entries = recorded.step.action_entries();
  recording.microbatches = config.microbatches;
  recording.runs = graph_runs(recorded.rank, recording.actions);
  recording.segments.clear();
  for (const auto& segment : recorded.rank.model.gpt.segments) recording.segments.push_back(segment.name);
  ArenaPlanSpec layout = layout_of(options, config, recording.searches);
  layout.same_place = held_by_graphs(recorded.timeline, recorded.rank.memory.arena, recording.actions,
                                     recording.entries, recording.runs);
  layout.concurrent_ops = concurrent_ops(options, recording, recorded.timeline);
  recording.plans.train =
      (recording.only_live_bytes ? plan_live_bytes : plan_arena)(recorded.timeline, recorded.rank.memory.arena, layout);
  recording.plans.train_ops = recorded.timeline.entries().size();
}

// Offloads from a recording of the stage's first rank, so that all its ranks choose the same: costs differ in a
// context-parallel ring.
struct ChoiceSpec {
  int rank;
  const std::optional<OffloadChosen>& before;  // earlier choice, which is kept
  bool searches;
};
OffloadChosen chosen_offloads(const Options& options, const RunConfig& config, const ChoiceSpec& spec) {
  if (!offloads(options)) return {};
  const int world = static_cast<int>(config.mesh.world()), of_stage = world / static_cast<int>(config.mesh.pp);
  PlanCommunicator ranks("world", {.rank = spec.rank / of_stage * of_stage, .size = world});
  const Mesh mesh = Mesh::create(ranks, config.mesh);
  Recording plain(options, config, mesh, {});
  StepRecording recording;
  recording.searches = spec.searches;
  plan_step(options, config, plain, recording);
  recording.timeline = counted(std::move(plain.timeline), options, config);
  if (spec.before) {
    OffloadChosen chosen = *spec.before;
    chosen.kept_live_bytes = recording.plans.train.live_bytes;
    chosen.kept_peak_bytes = recording.plans.train.peak_bytes;
    return chosen;
  }
  recording.calls = ranks.calls();
  recording.stands_for.assign(recording.actions.size(), 1);
  recording.step_microbatches = config.microbatches;
  return choose_offloads(plain.rank, recording);
}

void plan_training(const Options& options, const RunConfig& config, const Mesh& mesh, StepRecording& recording) {
  Recording recorded(options, config, mesh, recording.plans.offload.points);
  plan_step(options, config, recorded, recording);
  StepPlans& plans = recording.plans;
  if (const RankOffload* const offload = recorded.rank.offload.get()) {
    verify_recording(recorded.timeline, recorded.rank.memory.arena, recording.actions, recording.entries,
                     offload->points);
    plans.host = plan_arena(recorded.timeline, offload->host, layout_of(options, config, recording.searches));
  }
  if (options.checkpoint.async_save && !options.train.skip_train)
    plans.checkpoint_staging = staging_bytes(shards_to_write(recorded.rank));
  plans.persistent = recorded.rank.memory.pool.allocated_by_category();
  recording.timeline = counted(std::move(recorded.timeline), options, config);
  plans.train_flops = recording.timeline.flops();
}

// Sets stands_for in a recording of fewer microbatches than the step has.
void count_actions_of_units(const Options& options, const RunConfig& config, const Mesh& mesh,
                            StepRecording& recording) {
  const std::vector<Action>& recorded = recording.actions;
  recording.stands_for.assign(recorded.size(), 1);
  recording.step_microbatches = config.microbatches;
  const auto is_units = [](const Action& action) { return is_of_unit(action.kind); };
  if (recording.microbatches == config.microbatches || std::ranges::none_of(recorded, is_units)) return;
  Timeline timeline;
  const Rank rank(options, config, DeviceType::kPlan, mesh, {.timeline = &timeline}, 0, recording.plans.offload.points);
  std::map<std::pair<ActionKind, int>, std::int64_t> more;  // number of unrecorded actions
  for (const Action& action : step_actions(rank).train) more[{action.kind, action.item}] += is_units(action) ? 1 : 0;
  for (const Action& action : recorded) more[{action.kind, action.item}] -= is_units(action) ? 1 : 0;
  // The last action of each kind counts, as a unit's first reduction of a step may have one op less.
  for (std::size_t i = recorded.size(); i-- > 0;)
    recording.stands_for[i] += std::exchange(more[{recorded[i].kind, recorded[i].item}], 0);
}

void plan_evaluation(const Options& options, const RunConfig& config, const Mesh& mesh, bool searches,
                     StepPlans& plans) {
  Recording recorded(options, config, mesh, {});
  const BlankSamples samples(config, 0, config.evaluation_microbatches);
  recorded.step.evaluate(samples.input);
  recorded.rank.wait_for_parameters();
  const auto plan = [&](bool tightly) {
    plans.evaluate = plan_arena(recorded.timeline, recorded.rank.memory.arena, layout_of(options, config, tightly));
  };
  plan(false);
  // An evaluation uses the memory of the training step.
  if (searches && plans.evaluate.peak_bytes > plans.train.peak_bytes) plan(true);
}

// Records the second of two steps, as its weights are gathered concurrently with the next forward pass.
void record_second_step(const Options& options, const RunConfig& config, const Mesh& mesh, StepRecording& recording) {
  Recording recorded(options, config, mesh, recording.plans.offload.points);
  recorded.step.train(recorded.samples.input);
  recorded.step.train(recorded.samples.input);
  recording.entries = recorded.step.action_entries();
  recording.timeline = counted(std::move(recorded.timeline), options, config);
}

// Nodes of a captured op: one on the CPU. On a GPU an op is one kernel, except these; cuDNN's attention has about 8
// (tests/bench/RESULTS.md). Split kernels of cuBLASLt are unknown ahead of its choice. Graphs of Llama 1B have 576
// nodes where this rule gives 528, those of Llama 3 8B 1,248 where it gives 1,056.
std::int64_t nodes_of(std::string_view op, DeviceType device) {
  if (device != DeviceType::kCuda) return 1;
  if (op == "attention_backward") return 8;
  for (const char* const two : {"expert_offsets", "limit_expert_rows", "router_losses", "reduce_to_scalar"})
    if (op == two) return 2;
  return 1;
}

// Graphs of a whole step; the recording has the ops of its verbs.
StepGraphs graphs_of(const Options& options, const RunConfig& config, const Mesh& mesh,
                     const StepRecording& recording) {
  using Verb = std::tuple<ActionKind, int, bool>;  // verb of a segment, or its exchange: of a gradient or not
  const auto key = [](const Action& a) {
    return Verb(a.kind, is_exchange(a.kind) ? a.item : a.segment, is_exchange(a.kind) && a.gradient);
  };
  const auto has_ops = [](const Action& a) { return a.segment >= 0 || a.kind == ActionKind::kStartExchange; };
  const std::vector<Timeline::Entry>& entries = recording.timeline.entries();
  struct Ops {
    std::vector<std::string_view> names;
    std::int64_t nodes = 0;
  };
  std::map<Verb, Ops> ops_of_verb;
  StepGraphs graphs;
  for (std::size_t a = 0; a < recording.actions.size(); ++a) {
    const Action& action = recording.actions[a];
    const auto entry_of = [&](std::size_t i) {
      return static_cast<std::ptrdiff_t>(i < recording.entries.size() ? recording.entries[i] : entries.size());
    };
    Ops own;
    for (auto entry = entries.begin() + entry_of(a); entry != entries.begin() + entry_of(a + 1); ++entry) {
      if (entry->kind != Timeline::Kind::kOp) continue;
      own.names.push_back(entry->access.name());
      own.nodes += nodes_of(own.names.back(), options.device);
    }
    const std::int64_t ops = std::ssize(own.names);
    if (has_ops(action)) ops_of_verb[key(action)] = std::move(own);
    graphs.eager_ops += is_of_microbatch(action.kind) ? ops * config.microbatches
                                                      : ops * recording.microbatches * recording.stands_for[a];
  }
  graphs.eager_ops /= recording.microbatches;
  if (recording.runs.graphs == 0) return graphs;
  Timeline timeline;
  const Rank rank(options, config, DeviceType::kPlan, mesh, {.timeline = &timeline}, 0, recording.plans.offload.points);
  const std::vector<Action> actions = step_actions(rank).train;
  for (const GraphRunPlan plan = graph_runs(rank, actions); const GraphRun& run : plan.runs) {
    std::int64_t ops = 0, nodes = 0;
    std::uint64_t digest = kEmptyDigest;
    for (std::size_t a = run.first; a < run.first + run.count; ++a) {
      if (!has_ops(actions[a])) continue;  // a wait
      const int segment = actions[a].segment >= 0 ? actions[a].segment : actions[a].item;
      graphs.modules |= 1U << static_cast<unsigned>(rank.runner.entry(segment).module);
      const Ops& of_verb = ops_of_verb.at(key(actions[a]));
      ops += std::ssize(of_verb.names);
      nodes += of_verb.nodes;
      for (const std::string_view name : of_verb.names) fold(digest, name);
    }
    ++graphs.replays;
    graphs.eager_ops -= ops;
    if (run.graph != graphs.graphs) continue;  // graphs are numbered by their first runs
    ++graphs.graphs;
    graphs.captured_ops += ops;
    fold(graphs.digest_of_ops, digest);
    graphs.nodes += nodes;
  }
  return graphs;
}

// Recorded rounds of one microbatch per stage: two rounds fill most stashes, and a third repeats the second.
constexpr std::int64_t kRecordedRounds = 3;

std::int64_t recorded_microbatches(const Options& options, const PipelineLayout& pipeline, std::int64_t microbatches,
                                   std::int64_t most) {
  if (is_one_by_one(options, pipeline)) {
    if (!pipeline.overlaps_exchanges) return std::min(microbatches, kRecordedOneByOne);
    // Pairs alternate between two columns, and the last microbatch runs alone in the column of its parity. A forecast
    // records more, so that the two that run alone weigh less.
    const bool is_forecast = most > kRecordedOneByOne && most < kAll;
    const std::int64_t even = is_forecast ? 2 * kRecordedOneByOne : kRecordedOneByOne;
    return std::min(microbatches, even + microbatches % 2);
  }
  if (pipeline.kind == ScheduleKind::kGpipe || microbatches <= most) return microbatches;
  return std::min(microbatches, kRecordedRounds * pipeline.round());
}

RunConfig as_recorded(const Options& options, const RunConfig& config, std::int64_t most) {
  return with_microbatches(config, recorded_microbatches(options, config.pipeline, config.microbatches, most),
                           recorded_microbatches(options, config.pipeline, config.evaluation_microbatches, most));
}

}  // namespace

StepPlans plan_steps(const Options& options, const RunConfig& config, int rank,
                     const std::optional<OffloadChosen>& offloaded) {
  PlanCommunicator ranks("world", {.rank = rank, .size = static_cast<int>(config.mesh.world())});
  const Mesh mesh = Mesh::create(ranks, config.mesh);
  const RunConfig recorded = as_recorded(options, config, kAll);
  const bool is_long = recorded.microbatches < config.microbatches;
  StepRecording recording;
  recording.plans.offload = chosen_offloads(options, recorded, {.rank = rank, .before = offloaded, .searches = true});
  plan_training(options, recorded, mesh, recording);
  count_actions_of_units(options, config, mesh, recording);
  recording.plans.graphs = graphs_of(options, config, mesh, recording);
  plan_evaluation(options, recorded, mesh, recording.searches, recording.plans);
  StepPlans plans = std::move(recording.plans);
  plans.capacity_factor = options.parallel.moe_expert_rank_capacity_factor;
  if (const std::optional<ExpertRows> rows = expert_rows(options, config)) plans.room = rows->room;
  if (!is_long) return plans;
  StepRecording fewer;
  fewer.searches = false;
  fewer.plans.offload = plans.offload;
  plan_training(options, with_microbatches(config, recorded.microbatches - 1, 1), mesh, fewer);
  const std::int64_t more = config.microbatches - recorded.microbatches;
  plans.train_flops += static_cast<double>(more) * (plans.train_flops - fewer.plans.train_flops);
  plans.train_ops += static_cast<std::size_t>(more) * (plans.train_ops - fewer.plans.train_ops);
  return plans;
}

StepPlans plan_stages(const Options& options, const RunConfig& config, int rank) {
  StepPlans plans = plan_steps(options, config, rank);
  add_room_for_stages(options, config, rank, plans);
  return plans;
}

// Adds memory for the ramp's stages; beyond three rounds the memory repeats or, with gpipe, grows.
void add_room_for_stages(const Options& options, const RunConfig& config, int rank, StepPlans& largest) {
  const std::int64_t of_microbatch = config.sequences * config.mesh.dp;
  const std::int64_t most = std::max(kRecordedOneByOne, kRecordedRounds * config.pipeline.round()) * of_microbatch;
  RunConfig stage = config;
  for (const std::int64_t batch : smaller_batches(options.train)) {
    if (batch > most) break;
    stage.microbatches = batch / of_microbatch;
    const StepPlans plans = plan_steps(options, stage, rank, largest.offload);
    largest.train.peak_bytes = std::max(largest.train.peak_bytes, plans.train.peak_bytes);
    largest.host.peak_bytes = std::max(largest.host.peak_bytes, plans.host.peak_bytes);
  }
}

StepRecording record_step(const Options& options, const RunConfig& config, int rank, const RecordSpec& spec) {
  PlanCommunicator ranks("world", {.rank = rank, .size = static_cast<int>(config.mesh.world())});
  const Mesh mesh = Mesh::create(ranks, config.mesh);
  const RunConfig recorded = as_recorded(options, config, spec.max_microbatches);
  StepRecording recording;
  recording.searches = spec.searches;
  recording.only_live_bytes = spec.only_live_bytes;
  recording.plans.offload = chosen_offloads(options, recorded, {.rank = rank, .before = {}, .searches = spec.searches});
  plan_training(options, recorded, mesh, recording);
  if (spec.max_memory != 0 && memory_use(recording.plans).total() > spec.max_memory) return recording;
  if (options.parallel.overlap_param_gather) {
    ranks.clear_calls();
    record_second_step(options, recorded, mesh, recording);
  }
  recording.calls = ranks.calls();
  count_actions_of_units(options, config, mesh, recording);
  recording.plans.graphs = graphs_of(options, config, mesh, recording);
  if (spec.evaluates) plan_evaluation(options, recorded, mesh, spec.searches, recording.plans);
  return recording;
}

void add_evaluation(const Options& options, const RunConfig& config, int rank, const RecordSpec& spec,
                    StepPlans& plans) {
  PlanCommunicator ranks("world", {.rank = rank, .size = static_cast<int>(config.mesh.world())});
  const Mesh mesh = Mesh::create(ranks, config.mesh);
  plan_evaluation(options, as_recorded(options, config, spec.max_microbatches), mesh, spec.searches, plans);
}

RunConfig with_few_microbatches(const Options& options, const RunConfig& config) {
  return as_recorded(options, config, kRecordedOneByOne);
}

}  // namespace megalith

// What a step takes, recorded on the plan backend before anything is allocated.
#include "apps/async_save.h"
#include "apps/model_builder.h"
#include "core/device/timeline.h"
#include "parallel/comm/plan_communicator.h"

namespace megalith {

std::size_t MemoryUse::total() const {
  std::size_t bytes = arena;
  for (std::size_t category : persistent) bytes += category;
  return bytes;
}

namespace {

// `options` with fewer microbatches in a step.
Options with_microbatches(const Options& options, std::int64_t microbatches, std::int64_t data_parallel_size) {
  Options fewer = options;
  fewer.train.global_batch_size = microbatches * options.train.micro_batch_size * data_parallel_size;
  return fewer;
}

StepInput empty_input(const TrainingModel& model, const Options& options, std::vector<std::int32_t>& tokens) {
  const std::int64_t sequences = model.num_microbatches() * options.train.micro_batch_size;
  tokens.resize(static_cast<std::size_t>(sequences * (options.model.seq_length + 1)), 0);
  return {.iteration = 1,
          .learning_rate = 0,
          .first_samples = std::vector<std::int64_t>(static_cast<std::size_t>(model.num_microbatches()), 0),
          .tokens = tokens};
}

void plan_training(const Options& options, const Mesh& mesh, StepRecording& recording) {
  Timeline timeline;
  TrainingModel model(options, DeviceType::kPlan, mesh, {.timeline = &timeline});
  std::vector<std::int32_t> tokens;
  model.train_step(empty_input(model, options, tokens));
  model.wait_for_parameters();  // what the next step would do; a plan is of one, and ends with nothing under way
  StepPlans& plans = recording.plans;
  plans.train = plan_arena(timeline, model.arena());
  plans.train_flops = timeline.flops();
  plans.train_ops = timeline.entries().size();
  if (options.checkpoint.async_save) plans.checkpoint_staging = staging_bytes(shards_to_write(model, model.replicas()));
  recording.persistent = model.pool().allocated_by_category();
  recording.actions = model.train_actions();
  recording.entries = model.action_entries();
  recording.microbatches = model.num_microbatches();
  recording.timeline = std::move(timeline);
}

void plan_evaluation(const Options& options, const Mesh& mesh, StepPlans& plans) {
  Timeline timeline;
  TrainingModel model(options, DeviceType::kPlan, mesh, {.timeline = &timeline});
  std::vector<std::int32_t> tokens;
  model.evaluate_step(empty_input(model, options, tokens));
  plans.evaluate = plan_arena(timeline, model.arena());
}

// A step whose weights are gathered beside the next one's forward: the second of two.
void record_second_step(const Options& options, const Mesh& mesh, StepRecording& recording) {
  Timeline timeline;
  TrainingModel model(options, DeviceType::kPlan, mesh, {.timeline = &timeline});
  std::vector<std::int32_t> tokens;
  const StepInput input = empty_input(model, options, tokens);
  model.train_step(input);
  model.train_step(input);
  recording.entries = model.action_entries();
  recording.timeline = std::move(timeline);
}

// Where one part takes a microbatch forward and back before the next, all but the first and the last are alike: so
// many, and more add the same work in the same memory.
constexpr std::int64_t kRecordedOneByOne = 4;

bool is_one_by_one(const PipelineLayout& pipeline) {
  return pipeline.placement.num_parts() == 1 && pipeline.kind != ScheduleKind::kGpipe;
}

// Stages keep most stashes after at most two rounds of a microbatch for each, and a third repeats the second.
constexpr std::int64_t kRecordedRounds = 3;

std::int64_t recorded_microbatches(const PipelineLayout& pipeline, std::int64_t microbatches, std::int64_t most) {
  if (is_one_by_one(pipeline)) return std::min(microbatches, kRecordedOneByOne);
  if (pipeline.kind == ScheduleKind::kGpipe || microbatches <= most) return microbatches;
  return std::min(microbatches, kRecordedRounds * pipeline.placement.num_stages);
}

}  // namespace

StepPlans plan_steps(const Options& options, int rank, int world, CategoryBytes* persistent) {
  PlanCommunicator ranks("world", {.rank = rank, .size = world});
  const Mesh mesh = Mesh::create(ranks, mesh_sizes_of(options.parallel, world));
  const std::int64_t dp = mesh.sizes().dp;
  const std::int64_t microbatches = count_microbatches(options.train, static_cast<int>(dp));
  const bool is_long = microbatches > kRecordedOneByOne && is_one_by_one(pipeline_layout(options));
  const Options recorded = is_long ? with_microbatches(options, kRecordedOneByOne, dp) : options;
  StepRecording recording;
  plan_training(recorded, mesh, recording);
  StepPlans plans = std::move(recording.plans);
  plan_evaluation(recorded, mesh, plans);
  if (persistent != nullptr) *persistent = recording.persistent;
  if (!is_long) return plans;
  StepRecording fewer;
  plan_training(with_microbatches(options, kRecordedOneByOne - 1, dp), mesh, fewer);
  const std::int64_t more = microbatches - kRecordedOneByOne;
  plans.train_flops += static_cast<double>(more) * (plans.train_flops - fewer.plans.train_flops);
  plans.train_ops += static_cast<std::size_t>(more) * (plans.train_ops - fewer.plans.train_ops);
  return plans;
}

StepRecording record_step(const Options& options, int rank, int world, std::int64_t most_microbatches) {
  PlanCommunicator ranks("world", {.rank = rank, .size = world});
  const Mesh mesh = Mesh::create(ranks, mesh_sizes_of(options.parallel, world));
  const std::int64_t dp = mesh.sizes().dp;
  const std::int64_t microbatches = recorded_microbatches(
      pipeline_layout(options), count_microbatches(options.train, static_cast<int>(dp)), most_microbatches);
  const Options recorded = with_microbatches(options, microbatches, dp);
  StepRecording recording;
  plan_training(recorded, mesh, recording);
  if (options.parallel.overlap_param_gather) {
    ranks.clear_calls();
    record_second_step(recorded, mesh, recording);
  }
  recording.calls = ranks.calls();
  plan_evaluation(recorded, mesh, recording.plans);
  return recording;
}

MemoryUse memory_use(const StepPlans& plans, const CategoryBytes& persistent) {
  MemoryUse use{.persistent = persistent,
                .arena = plans.block_bytes(),
                .arena_live = plans.train.live_by_category,
                .activations = {}};
  for (const auto& [owner, bytes] : plans.train.live_by_owner) {
    for (int kind = 0; kind < kNumSlotKinds; ++kind) {
      if (owner == name_of(static_cast<SlotKind>(kind))) use.activations.emplace_back(owner, bytes);
    }
  }
  return use;
}

}  // namespace megalith

#include "apps/step_plans.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>

#include "apps/async_save.h"
#include "apps/step.h"

namespace megalith {

namespace {

RunConfig with_microbatches(RunConfig config, std::int64_t microbatches) {
  config.microbatches = microbatches;
  return config;
}

// A rank on the plan backend, and a step on samples of no meaning.
struct Recording {
  Recording(const Options& options, const RunConfig& config, const Mesh& mesh)
      : rank(options, config, DeviceType::kPlan, mesh, {.timeline = &timeline}, 0),
        step(rank),
        tokens(static_cast<std::size_t>(config.step_sequences() * (config.seq_length + 1))),
        input{.iteration = 1,
              .first_samples = std::vector<std::int64_t>(static_cast<std::size_t>(config.microbatches)),
              .tokens = tokens} {}

  Timeline timeline;
  Rank rank;
  Step step;
  std::vector<std::int32_t> tokens;
  StepInput input;
};

void plan_training(const Options& options, const RunConfig& config, const Mesh& mesh, StepRecording& recording) {
  Recording recorded(options, config, mesh);
  recorded.step.train(recorded.input);
  recorded.step.wait_for_parameters();  // the next step would, but a plan of one ends with nothing under way
  StepPlans& plans = recording.plans;
  plans.train = plan_arena(recorded.timeline, recorded.rank.memory.arena);
  plans.train_flops = recorded.timeline.flops();
  plans.train_ops = recorded.timeline.entries().size();
  if (options.checkpoint.async_save) plans.checkpoint_staging = staging_bytes(shards_to_write(recorded.rank));
  plans.persistent = recorded.rank.memory.pool.allocated_by_category();
  recording.actions = recorded.step.actions().train;
  recording.entries = recorded.step.action_entries();
  recording.microbatches = config.microbatches;
  recording.timeline = std::move(recorded.timeline);
}

void plan_evaluation(const Options& options, const RunConfig& config, const Mesh& mesh, StepPlans& plans) {
  Recording recorded(options, config, mesh);
  recorded.step.evaluate(recorded.input);
  plans.evaluate = plan_arena(recorded.timeline, recorded.rank.memory.arena);
}

// A step whose weights are gathered beside the next one's forward: the second of two.
void record_second_step(const Options& options, const RunConfig& config, const Mesh& mesh, StepRecording& recording) {
  Recording recorded(options, config, mesh);
  recorded.step.train(recorded.input);
  recorded.step.train(recorded.input);
  recording.entries = recorded.step.action_entries();
  recording.timeline = std::move(recorded.timeline);
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

StepPlans plan_steps(const Options& options, const RunConfig& config, int rank) {
  PlanCommunicator ranks("world", {.rank = rank, .size = static_cast<int>(config.mesh.world())});
  const Mesh mesh = Mesh::create(ranks, config.mesh);
  const bool is_long = config.microbatches > kRecordedOneByOne && is_one_by_one(config.pipeline);
  const RunConfig recorded = is_long ? with_microbatches(config, kRecordedOneByOne) : config;
  StepRecording recording;
  plan_training(options, recorded, mesh, recording);
  StepPlans plans = std::move(recording.plans);
  plan_evaluation(options, recorded, mesh, plans);
  if (!is_long) return plans;
  StepRecording fewer;
  plan_training(options, with_microbatches(config, kRecordedOneByOne - 1), mesh, fewer);
  const std::int64_t more = config.microbatches - kRecordedOneByOne;
  plans.train_flops += static_cast<double>(more) * (plans.train_flops - fewer.plans.train_flops);
  plans.train_ops += static_cast<std::size_t>(more) * (plans.train_ops - fewer.plans.train_ops);
  return plans;
}

StepRecording record_step(const Options& options, const RunConfig& config, int rank, std::int64_t most_microbatches) {
  PlanCommunicator ranks("world", {.rank = rank, .size = static_cast<int>(config.mesh.world())});
  const Mesh mesh = Mesh::create(ranks, config.mesh);
  const RunConfig recorded =
      with_microbatches(config, recorded_microbatches(config.pipeline, config.microbatches, most_microbatches));
  StepRecording recording;
  plan_training(options, recorded, mesh, recording);
  if (options.parallel.overlap_param_gather) {
    ranks.clear_calls();
    record_second_step(options, recorded, mesh, recording);
  }
  recording.calls = ranks.calls();
  plan_evaluation(options, recorded, mesh, recording.plans);
  return recording;
}

std::string printed_actions(const Options& options, const RunConfig& config) {
  const auto world = static_cast<int>(config.mesh.world()), stages = static_cast<int>(config.mesh.pp);
  std::string text;
  for (int stage = 0; stage < stages; ++stage) {
    PlanCommunicator ranks("world", {.rank = stage * (world / stages), .size = world});
    const Mesh mesh = Mesh::create(ranks, config.mesh);
    Timeline timeline;
    const Rank rank(options, config, DeviceType::kPlan, mesh, {.timeline = &timeline}, 0);
    if (stages > 1) text += fmt::format("stage {}\n", stage);
    text += printed(step_actions(rank).train, rank.model.gpt);
  }
  return text;
}

std::size_t MemoryUse::total() const { return std::accumulate(persistent.begin(), persistent.end(), arena); }

std::vector<std::pair<std::size_t, std::string_view>> MemoryUse::owners() const {
  std::vector<std::pair<std::size_t, std::string_view>> owners = {{arena, "activations and temporaries"}};
  for (int c = 0; c < kNumMemoryCategories; ++c)
    owners.emplace_back(persistent[static_cast<std::size_t>(c)], name_of(static_cast<MemoryCategory>(c)));
  std::ranges::sort(owners, std::greater());
  return owners;
}

MemoryUse memory_use(const StepPlans& plans) {
  return {.persistent = plans.persistent,
          .arena = plans.block_bytes(),
          .arena_live = plans.train.live_by_category,
          .activations = plans.train.live_activations};
}

}  // namespace megalith

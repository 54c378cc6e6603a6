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

void plan_mode(Mode mode, const Options& options, const Mesh& mesh, StepPlans& plans, CategoryBytes* persistent) {
  Timeline timeline;
  TrainingModel model(options, DeviceType::kPlan, mesh, {.timeline = &timeline});
  const std::int64_t sequences = model.num_microbatches() * options.train.micro_batch_size;
  const std::vector<std::int32_t> no_tokens(static_cast<std::size_t>(sequences * (options.model.seq_length + 1)), 0);
  const StepInput input{
      .iteration = 1,
      .learning_rate = 0,
      .first_samples = std::vector<std::int64_t>(static_cast<std::size_t>(model.num_microbatches()), 0),
      .tokens = no_tokens};
  if (mode == Mode::kTrain) {
    model.train_step(input);
    model.wait_for_parameters();  // what the next step would do; a plan is of one, and ends with nothing under way
    plans.train = plan_arena(timeline, model.arena());
    plans.train_flops = timeline.flops();
    plans.train_ops = timeline.entries().size();
    if (persistent != nullptr) *persistent = model.pool().allocated_by_category();
    if (options.checkpoint.async_save) plans.checkpoint_staging = staging_bytes(shards_to_write(model, mesh.dp()));
  } else {
    model.evaluate_step(input);
    plans.evaluate = plan_arena(timeline, model.arena());
  }
}

}  // namespace

// Where one part takes a microbatch forward and back before the next, all but the first and the last are alike: so
// many, and more add the same work in the same memory. Otherwise all are recorded, as each schedule has patterns of its
// own.
StepPlans plan_steps(const Options& options, int rank, int world, CategoryBytes* persistent) {
  constexpr std::int64_t kRecorded = 4;
  PlanCommunicator ranks("world", {.rank = rank, .size = world});
  const Mesh mesh = Mesh::create(ranks, mesh_sizes_of(options.parallel, world));
  const std::int64_t dp = mesh.sizes().dp;
  const std::int64_t microbatches = count_microbatches(options.train, static_cast<int>(dp));
  StepPlans plans;
  const PipelineLayout pipeline = pipeline_layout(options);
  const bool one_by_one = pipeline.placement.num_parts() == 1 && pipeline.kind != ScheduleKind::kGpipe;
  if (microbatches <= kRecorded || !one_by_one) {
    plan_mode(Mode::kTrain, options, mesh, plans, persistent);
    plan_mode(Mode::kEval, options, mesh, plans, nullptr);
    return plans;
  }
  StepPlans fewer;
  plan_mode(Mode::kTrain, with_microbatches(options, kRecorded - 1, dp), mesh, fewer, nullptr);
  const Options recorded = with_microbatches(options, kRecorded, dp);
  plan_mode(Mode::kTrain, recorded, mesh, plans, persistent);
  plan_mode(Mode::kEval, recorded, mesh, plans, nullptr);
  const std::int64_t more = microbatches - kRecorded;
  plans.train_flops += static_cast<double>(more) * (plans.train_flops - fewer.train_flops);
  plans.train_ops += static_cast<std::size_t>(more) * (plans.train_ops - fewer.train_ops);
  return plans;
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

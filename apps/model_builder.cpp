#include "apps/model_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/device/copy.h"
#include "core/device/timeline.h"
#include "core/device/trace.h"
#include "core/ops/elementwise.h"
#include "core/ops/grad_norm.h"
#include "parallel/comm/plan_communicator.h"
#include "parallel/tensor_parallel/tensor_parallel.h"

namespace megalith {

// Host memory of one step that streams read and write; the host touches it only before the step is enqueued and after
// its report came.
struct TrainingModel::HostStep {
  std::int32_t* tokens = nullptr;  // [M, T]
  std::int32_t* labels = nullptr;  // [M, T]
  StepParameters* report = nullptr;
  StepInput input;
  double enqueue_seconds = 0;
  bool follows = false;  // enqueued while the step before was still pending
  Event begun{"step begin", true};
  Event reported{"step report", true};
};

namespace {

// Arena scopes of the step loop itself.
enum StepVerb : std::int32_t { kLoadVerb };

template <class T>
T* allocate_one(MemoryPool& pool, std::string_view owner) {
  return static_cast<T*>(pool.allocate(sizeof(T), MemoryCategory::kOther, owner));
}

}  // namespace

void check_step_size(const Options& options) {
  constexpr std::int64_t kMaxStep = std::int64_t{1} << 40;
  constexpr std::int64_t kMaxMicrobatch = std::int64_t{1} << 32;
  const auto limit = [&](const char* flag, std::int64_t samples, std::int64_t most) {
    if (samples <= most / options.model.seq_length) return;
    refuse_usage(fmt::format("{} and --seq-length", flag), fmt::format("at most {} tokens", most),
                 fmt::format("{} x {}", samples, options.model.seq_length), "lower one of them");
  };
  limit("--global-batch-size", options.train.global_batch_size, kMaxStep);
  limit("--micro-batch-size", options.train.micro_batch_size, kMaxMicrobatch);
}

std::int64_t count_microbatches(const TrainingOptions& options, int data_parallel_size) {
  const std::int64_t per_microbatch = options.micro_batch_size * data_parallel_size;
  constexpr std::int64_t kMost = 1 << 16;
  if (options.global_batch_size / per_microbatch > kMost) {
    refuse_usage("--global-batch-size",
                 fmt::format("at most {} microbatches per step and rank, {} samples", kMost, kMost * per_microbatch),
                 std::to_string(options.global_batch_size), "raise --micro-batch-size or the number of ranks");
  }
  if (options.global_batch_size % per_microbatch == 0) return options.global_batch_size / per_microbatch;
  const std::int64_t below = options.global_batch_size / per_microbatch * per_microbatch;
  refuse_usage("--global-batch-size",
               fmt::format("a multiple of --micro-batch-size {} x {} data-parallel ranks", options.micro_batch_size,
                           data_parallel_size),
               std::to_string(options.global_batch_size),
               fmt::format("use {}{}", below > 0 ? std::to_string(below) + " or " : "", below + per_microbatch));
}

MeshSizes mesh_sizes(const Options& options, int world) {
  return make_mesh_sizes(
      {.world_size = world, .tensor_model_parallel_size = options.parallel.tensor_model_parallel_size});
}

StashPolicies stash_policies(const TrainingOptions& options) {
  StashPolicies policies{};
  if (options.recompute_granularity != RecomputeGranularity::kSelective) return policies;
  const auto recompute = [&](SlotKind kind) { policies[static_cast<std::size_t>(kind)] = StashPolicy::kRecompute; };
  for (const std::string& module : options.recompute_modules) {
    if (module == "core_attn") recompute(SlotKind::kAttnProj);
    if (module == "layernorm") {
      recompute(SlotKind::kQkvLinear);
      recompute(SlotKind::kFc1);
    }
    if (module == "mlp_act") recompute(SlotKind::kFc2);
  }
  return policies;
}

RecomputeLayers recompute_layers(const Options& options) {
  const TrainingOptions& train = options.train;
  RecomputeLayers recompute;
  if (train.recompute_granularity == RecomputeGranularity::kSelective) {
    recompute.mlp = std::find(train.recompute_modules.begin(), train.recompute_modules.end(), "mlp") !=
                    train.recompute_modules.end();
  }
  if (train.recompute_granularity != RecomputeGranularity::kFull) return recompute;
  const std::int64_t layers = options.model.num_layers;
  if (train.recompute_method == RecomputeMethod::kUniform) {
    for (std::int64_t first = 0; first < layers; first += train.recompute_num_layers) {
      recompute.ranges.push_back({.first = first, .count = std::min(train.recompute_num_layers, layers - first)});
    }
  } else {
    for (std::int64_t layer = 0; layer < std::min(train.recompute_num_layers, layers); ++layer) {
      recompute.ranges.push_back({.first = layer, .count = 1});
    }
  }
  return recompute;
}

TrainingModel::TrainingModel(const Options& options, DeviceType device, const ParallelGroups& groups,
                             Instruments instruments, std::size_t memory_limit)
    : options_(options),
      data_parallel_(groups.data),
      loss_group_(groups.data.duplicate("dp loss")),
      pool_(device, memory_limit),
      compute_(device, "compute", instruments),
      communication_(device, "communication", instruments),
      tensor_communication_(
          groups.tensor.size() == 1 ? nullptr : std::make_unique<Stream>(device, "tensor communication", instruments)),
      tensor_(groups.tensor, tensor_communication_ ? *tensor_communication_ : communication_,
              options.parallel.sequence_parallel),
      arena_(pool_, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned),
      gpt_(build_gpt(options.model, recompute_layers(options), tensor_parallel_factories(options.model, tensor_),
                     options.train.loss_chunk_size)),
      num_microbatches_(count_microbatches(options.train, groups.data.size())),
      ctx_{.compute = compute_, .arena = arena_} {
  if (instruments.captures != nullptr) pool_.set_capture_guard(instruments.captures);
  ParameterStore& store = *gpt_.parameters;
  store.allocate(pool_, options.model.params_dtype, options.train.main_grads_dtype);
  shared_gradients_ = std::make_unique<SharedGradients>(tensor_, store, pool_);
  const auto sum_squares = [this](Stream& stream, const Tensor& squares) {
    tensor_.all_reduce(stream, squares, ReduceOp::kSum, "squares of gradients");
  };
  optimizer_ = std::make_unique<AdamWOptimizer>(store, pool_,
                                                AdamWOptimizer::Spec{.beta1 = options.train.adam_beta1,
                                                                     .beta2 = options.train.adam_beta2,
                                                                     .eps = options.train.adam_eps,
                                                                     .weight_decay = options.train.weight_decay,
                                                                     .clip_grad = options.train.clip_grad,
                                                                     .exp_avg_dtype = options.train.exp_avg_dtype,
                                                                     .exp_avg_sq_dtype = options.train.exp_avg_sq_dtype,
                                                                     .sum_squares = sum_squares});
  ctx_.policies = stash_policies(options.train);
  ctx_.seed = static_cast<std::uint64_t>(options.train.seed);
  ctx_.planned_for = options.train.device;
  ctx_.deterministic = options.train.deterministic_mode;
  ctx_.loss_sum = Tensor(pool_.allocate(sizeof(float), MemoryCategory::kOther, "loss"), DType::kFp32, {1});
  step_parameters_ = allocate_one<StepParameters>(pool_, "step parameters");
  allocate_staging();
  std::vector<SegmentRunner::Entry> entries;
  for (const NamedSegment& named : gpt_.segments)
    entries.push_back({.name = named.name, .segment = named.segment.get(), .hooks = {}});
  runner_ = std::make_unique<SegmentRunner>(ctx_, std::move(entries));
  build_actions();
  fill_table();
}

TrainingModel::~TrainingModel() {
  try {  // streams hold addresses of this object
    communication_.synchronize();
    if (tensor_communication_) tensor_communication_->synchronize();
    compute_.synchronize();
  } catch (const std::exception&) {  // the step that failed has told already
  }
}

void TrainingModel::allocate_staging() {
  const auto tokens =
      static_cast<std::size_t>(num_microbatches_ * options_.train.micro_batch_size * options_.model.seq_length);
  constexpr std::size_t kPadding = 3 * 256;  // each of the three buffers is aligned
  constexpr std::size_t kSteps = 3;          // two pending, and the one before, whose end is when the next begins
  const std::size_t bytes = kSteps * (2 * tokens * sizeof(std::int32_t) + sizeof(StepParameters) + kPadding);
  host_arena_ = std::make_unique<HostArena>(pool_.device(), bytes, "step staging");
  for (std::size_t i = 0; i < kSteps; ++i) {
    const auto& step = host_.emplace_back(std::make_unique<HostStep>());
    step->tokens = host_arena_->allocate_as<std::int32_t>(tokens);
    step->labels = host_arena_->allocate_as<std::int32_t>(tokens);
    step->report = host_arena_->allocate_as<StepParameters>(1);
  }
}

void TrainingModel::build_actions() {
  const std::vector<ParameterUnit>& units = gpt_.parameters->units();
  std::vector<std::int64_t> ready_numels;  // backward reaches the last unit first
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) ready_numels.push_back(unit->numel);
  std::vector<std::vector<Tensor>> gradients;
  ReducePoints points{.segments_of_bucket = {},
                      .tied_segment = options_.model.untie_embeddings_and_output_weights ? -1 : 0};
  for (const std::vector<int>& bucket : assign_buckets(ready_numels, options_.parallel.ddp_bucket_size)) {
    std::vector<Tensor> tensors;
    std::vector<int> segments;
    for (int ready : bucket) {
      const int unit = static_cast<int>(units.size()) - 1 - ready;
      tensors.push_back(units[static_cast<std::size_t>(unit)].main_grads);
      for (int s = 0; s < runner_->num_segments(); ++s) {
        const NamedSegment& segment = gpt_.segments[static_cast<std::size_t>(s)];
        if (segment.first_unit <= unit && unit <= segment.last_unit) segments.push_back(s);
      }
    }
    gradients.push_back(std::move(tensors));
    points.segments_of_bucket.push_back(std::move(segments));
  }
  reducer_ = std::make_unique<GradientReducer>(
      data_parallel_, GradientReducer::Streams{.compute = compute_, .communication = communication_}, gradients);
  const Schedule schedule = make_schedule(ScheduleKind::k1F1B, 1, 1, static_cast<int>(num_microbatches_));
  train_actions_ = lower_training_step(schedule.stages[0], {runner_->num_segments()}, points);
  evaluate_actions_ = lower_evaluation_step(schedule.stages[0], {runner_->num_segments()});
  for (int column = 0; column < num_columns(train_actions_); ++column) {
    microbatch_parameters_.push_back(allocate_one<MicrobatchParameters>(pool_, "microbatch parameters"));
  }
}

void TrainingModel::fill_table() {
  const auto run_verb = [this](const Action& action) { runner_->run(action); };
  table_.set(ActionKind::kZeroGradients, [this](const Action&) { gpt_.parameters->zero_gradients(compute_); });
  table_.set(ActionKind::kLoad, [this](const Action& action) { load(action); });
  table_.set(ActionKind::kForward, run_verb);
  table_.set(ActionKind::kBackwardData, run_verb);
  table_.set(ActionKind::kBackwardWeight, run_verb);
  table_.set(ActionKind::kTieGradients, [this](const Action&) { gpt_.parameters->add_tied_gradients(compute_); });
  table_.set(ActionKind::kReduce, [this](const Action& action) { reducer_->reduce(action.bucket); });
  table_.set(ActionKind::kFinishReduce, [this](const Action&) {
    reducer_->finish();
    shared_gradients_->sum(compute_);
  });
  table_.set(ActionKind::kReduceLoss, [this](const Action&) {
    if (data_parallel_.size() == 1) return;
    loss_group_->label_next("loss");
    loss_group_->all_reduce(compute_, ctx_.loss_sum);
  });
  table_.set(ActionKind::kOptimizerStep,
             [this](const Action&) { optimizer_->step(compute_, ctx_.loss_sum, step_parameters_); });
}

void TrainingModel::initialize() {
  gpt_.parameters->initialize(compute_, static_cast<std::uint64_t>(options_.train.seed));
  optimizer_->initialize(compute_);
  const StepParameters start;
  copy_from_host(compute_, step_parameters_, &start, sizeof(start));
  compute_.synchronize();
}

void TrainingModel::use(const StepPlans& plans) {
  plans_ = &plans;
  arena_.use(plans.train.peak_bytes > plans.evaluate.peak_bytes ? plans.train : plans.evaluate);
}

std::int64_t TrainingModel::tokens_per_step() const {
  return options_.train.global_batch_size * options_.model.seq_length;
}

TrainingModel::HostStep& TrainingModel::staged(int steps_ago) {
  const auto count = static_cast<std::int64_t>(host_.size());
  return *host_[static_cast<std::size_t>((steps_staged_ + count - steps_ago) % count)];
}

void TrainingModel::stage(const StepInput& input) {
  const std::int64_t length = options_.model.seq_length;
  const std::int64_t sequences = num_microbatches_ * options_.train.micro_batch_size;
  require(input.tokens.size() == static_cast<std::size_t>(sequences * (length + 1)),
          "StepInput::tokens has a wrong size");
  require(pending_steps_ < 2, "two steps are pending: read a result before the next step");
  ++steps_staged_;
  HostStep& step = last_step();
  step.input = input;
  Access access("stage tokens");
  access.add(step.tokens, static_cast<std::size_t>(sequences * length) * 4, true);
  access.add(step.labels, static_cast<std::size_t>(sequences * length) * 4, true);
  compute_.announce_host(access);
  if (pool_.device() == DeviceType::kPlan) return;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int32_t* from = input.tokens.data() + s * (length + 1);
    std::copy_n(from, length, step.tokens + s * length);
    std::copy_n(from + 1, length, step.labels + s * length);
  }
}

void TrainingModel::load(const Action& action) {
  const std::int64_t sequences = options_.train.micro_batch_size;
  const std::int64_t tokens = sequences * options_.model.seq_length;
  const auto m = static_cast<std::size_t>(action.microbatch);
  const auto column = static_cast<std::size_t>(action.column);
  arena_.begin_scope({.column = action.column, .segment = -1, .verb = kLoadVerb});
  const Batch batch{.tokens = ctx_.empty({tokens}, DType::kInt32, "tokens"),
                    .labels = ctx_.empty({tokens}, DType::kInt32, "labels"),
                    .sequences = sequences,
                    .seq_length = options_.model.seq_length};
  const HostStep& step = last_step();
  copy_from_host(compute_, batch.tokens.data, step.tokens + action.microbatch * tokens, batch.tokens.bytes());
  copy_from_host(compute_, batch.labels.data, step.labels + action.microbatch * tokens, batch.labels.bytes());
  launch(compute_, WriteMicrobatchParameters{.value = {.iteration = step.input.iteration,
                                                       .first_sample = step.input.first_samples[m],
                                                       .loss_scale = 1.0f / static_cast<float>(tokens_per_step())},
                                             .out = microbatch_parameters_[column]});
  runner_->set_batch(action.column, batch, microbatch_parameters_[column]);
}

// `proceeds` is asked before each action; false ends the step there.
void TrainingModel::run_step(Mode mode, const std::vector<Action>& actions, const StepInput& input,
                             const std::function<bool(const Action&)>& proceeds) {
  stage(input);
  ctx_.mode = mode;
  if (plans_ != nullptr) arena_.use(mode == Mode::kTrain ? plans_->train : plans_->evaluate);
  compute_.record(last_step().begun);
  launch(compute_, Fill{.x = ctx_.loss_sum, .value = 0});
  launch(compute_,
         WriteStepParameters{
             .iteration = input.iteration, .learning_rate = input.learning_rate, .parameters = step_parameters_});
  if (!proceeds) return table_.run(actions);
  for (const Action& action : actions) {
    if (!proceeds(action)) return;
    table_.run({action});
  }
}

bool TrainingModel::train_step(const StepInput& input, const std::function<bool()>& updates) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const bool follows = pending_steps_ > 0;
  Clock::duration asked{};
  bool dropped = false;
  const auto proceeds = [&](const Action& action) {
    if (action.kind != ActionKind::kOptimizerStep || !updates) return true;
    const auto before = Clock::now();
    ++pending_steps_;  // this one, as read_result() counts
    dropped = !updates();
    --pending_steps_;
    asked += Clock::now() - before;
    return !dropped;
  };
  {
    const TraceRange range(compute_, compute_.instruments().trace,
                           [&] { return fmt::format("step {}", input.iteration); });
    run_step(Mode::kTrain, train_actions_, input, proceeds);
  }
  if (dropped) {
    compute_.synchronize();
    --steps_staged_;
    return false;
  }
  last_step().follows = follows;
  copy_to_host(compute_, last_step().report, step_parameters_, sizeof(StepParameters));
  compute_.record(last_step().reported);
  last_step().enqueue_seconds = std::chrono::duration<double>(Clock::now() - start - asked).count();
  ++pending_steps_;
  return true;
}

StepResult TrainingModel::read_result() {
  require(pending_steps_ > 0, "no step is pending");
  HostStep& step = staged(pending_steps_ - 1);
  const HostStep& before = staged(pending_steps_);
  --pending_steps_;
  compute_.synchronize_host(step.reported);
  Access access("read the step's result");
  access.add(step.report, sizeof(StepParameters), false);
  compute_.announce_host(access);
  return {.iteration = step.input.iteration,
          .loss = step.report->loss / static_cast<float>(tokens_per_step()),
          .grad_norm = step.report->grad_norm,
          .skipped = step.report->skip != 0,
          .adam_count = step.report->adam_count,
          .enqueue_seconds = step.enqueue_seconds,
          .seconds = seconds_between(step.follows ? before.reported : step.begun, step.reported)};
}

void TrainingModel::repeat_step(const StepInput& input, const std::function<void(const Action&)>& before) {
  require(pending_steps_ == 0, "a training step is pending: read its result before it is repeated");
  const auto floats = static_cast<std::int64_t>(arena_.block_bytes() / sizeof(float));
  launch(compute_, Fill{.x = Tensor(arena_.block(), DType::kFp32, {floats}), .value = 0});
  run_step(Mode::kTrain, train_actions_, input, [&](const Action& action) {
    if (action.kind == ActionKind::kOptimizerStep) return false;
    before(action);
    return true;
  });
  communication_.synchronize();
  compute_.synchronize();
  --steps_staged_;
}

std::string TrainingModel::name_of(const void* address) const {
  const auto within = [address](const Tensor& t) {
    const auto* begin = t.as<std::byte>();
    return t.present() && address >= begin && address < begin + t.bytes();
  };
  if (within(ctx_.loss_sum)) return "loss";
  for (const ParameterUnit& unit : gpt_.parameters->units()) {
    for (const Parameter* parameter : unit.parameters) {
      for (std::size_t i = 0; i < parameter->parts.size(); ++i) {
        const std::string& name = parameter->parts[i].name;
        if (within(parameter->part_of(parameter->weight, i))) return name;
        if (within(parameter->part_of(parameter->main_grad, i))) return "gradient of " + name;
      }
    }
    if (within(unit.main_grads)) return "gradients of unit " + unit.name;
  }
  return arena_.owner_of(address);
}

void TrainingModel::warm_up() {
  const std::int64_t sequences = num_microbatches_ * options_.train.micro_batch_size;
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(sequences * (options_.model.seq_length + 1)), 0);
  std::vector<Action> first;
  for (const Action& action : train_actions_) {
    const bool computes = action.kind == ActionKind::kLoad || action.kind == ActionKind::kForward ||
                          action.kind == ActionKind::kBackwardData || action.kind == ActionKind::kBackwardWeight;
    if (computes && action.microbatch == 0) first.push_back(action);
  }
  run_step(Mode::kTrain, first,
           {.iteration = 1,
            .first_samples = std::vector<std::int64_t>(static_cast<std::size_t>(num_microbatches_), 0),
            .tokens = tokens});
  compute_.synchronize();
}

float TrainingModel::evaluate_step(const StepInput& input) {
  require(pending_steps_ == 0, "a training step is pending: read its result before an evaluation");
  run_step(Mode::kEval, evaluate_actions_, input);
  HostStep& step = last_step();
  copy_to_host(compute_, &step.report->loss, ctx_.loss_sum.data, sizeof(float));
  compute_.record(step.reported);
  if (pool_.device() == DeviceType::kPlan) return 0;
  compute_.synchronize_host(step.reported);
  Access access("read the evaluation's loss");
  access.add(&step.report->loss, sizeof(float), false);
  compute_.announce_host(access);
  return step.report->loss / static_cast<float>(tokens_per_step());
}

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
  TrainingModel model(options, DeviceType::kPlan, {.data = mesh.dp(), .tensor = mesh.tp()}, {.timeline = &timeline});
  const std::int64_t sequences = model.num_microbatches() * options.train.micro_batch_size;
  const std::vector<std::int32_t> no_tokens(static_cast<std::size_t>(sequences * (options.model.seq_length + 1)), 0);
  const StepInput input{
      .iteration = 1,
      .learning_rate = 0,
      .first_samples = std::vector<std::int64_t>(static_cast<std::size_t>(model.num_microbatches()), 0),
      .tokens = no_tokens};
  if (mode == Mode::kTrain) {
    model.train_step(input);
    plans.train = plan_arena(timeline, model.arena());
    plans.train_flops = timeline.flops();
    plans.train_ops = timeline.entries().size();
    if (persistent != nullptr) *persistent = model.pool().allocated_by_category();
  } else {
    model.evaluate_step(input);
    plans.evaluate = plan_arena(timeline, model.arena());
  }
}

}  // namespace

// All microbatches but the first and the last are alike: so many, and more add the same work in the same memory.
StepPlans plan_steps(const Options& options, int rank, int world, CategoryBytes* persistent) {
  constexpr std::int64_t kRecorded = 4;
  const MeshSizes sizes = mesh_sizes(options, world);
  const std::int64_t microbatches = count_microbatches(options.train, static_cast<int>(sizes.dp));
  PlanCommunicator all("world", {.rank = rank, .size = world});
  const Mesh mesh = Mesh::create(all, sizes);
  StepPlans plans;
  if (microbatches <= kRecorded) {
    plan_mode(Mode::kTrain, options, mesh, plans, persistent);
    plan_mode(Mode::kEval, options, mesh, plans, nullptr);
    return plans;
  }
  StepPlans fewer;
  plan_mode(Mode::kTrain, with_microbatches(options, kRecorded - 1, sizes.dp), mesh, fewer, nullptr);
  const Options recorded = with_microbatches(options, kRecorded, sizes.dp);
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

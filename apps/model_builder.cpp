#include "apps/model_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "core/device/copy.h"
#include "core/device/trace.h"
#include "core/ops/elementwise.h"
#include "core/ops/grad_norm.h"
#include "parallel/context_parallel/context_parallel.h"
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

TrainingModel::TrainingModel(const Options& options, DeviceType device, const Mesh& mesh, Instruments instruments,
                             std::size_t memory_limit)
    : options_(options),
      mesh_(mesh),
      data_parallel_(mesh.cp().size() == 1 ? mesh.dp() : mesh.dp_cp()),
      pipeline_(pipeline_layout(options)),
      parts_(pipeline_.parts_of(mesh.coordinates().pp)),
      pool_(device, memory_limit),
      compute_(device, "compute", instruments),
      communication_(device, "communication", instruments),
      tensor_communication_(
          mesh.tp().size() == 1 ? nullptr : std::make_unique<Stream>(device, "tensor communication", instruments)),
      tensor_(mesh.tp(), tensor_communication_ ? *tensor_communication_ : communication_,
              {.sequence_parallel = options.parallel.sequence_parallel, .overlap = options.parallel.tp_comm_overlap}),
      context_communication_(
          mesh.cp().size() == 1 ? nullptr : std::make_unique<Stream>(device, "context communication", instruments)),
      context_(mesh.cp(), context_communication_ ? *context_communication_ : communication_),
      arena_(pool_, device == DeviceType::kPlan ? Arena::Mode::kRecording : Arena::Mode::kPlanned),
      gpt_(build_gpt(options.model, recompute_layers(options, parts_), factories(), options.train.loss_chunk_size,
                     parts_)),
      num_microbatches_(count_microbatches(options.train, mesh.dp().size())),
      ctx_{.compute = compute_, .arena = arena_} {
  // The groups first, before anything can fail on one rank alone.
  make_groups();
  if (instruments.captures != nullptr) pool_.set_capture_guard(instruments.captures);
  std::vector<SegmentRunner::Entry> entries;
  for (const NamedSegment& named : gpt_.segments)
    entries.push_back({.name = named.name, .segment = named.segment.get(), .hooks = {}});
  runner_ = std::make_unique<SegmentRunner>(ctx_, std::move(entries));
  Instruments of_transfer = instruments;
  of_transfer.observer = nullptr;  // which would wait for a receive before the peer is asked to send
  transfer_ = std::make_unique<PipelineTransfer>(
      mesh.pp(), ctx_, *runner_,
      PipelineTransfer::Spec{
          .placement = pipeline_.placement,
          .shape = {tensor_.rows(options.train.micro_batch_size * rank_length()), options.model.hidden_size},
          .dtype = options.model.params_dtype,
          .device = device,
          .instruments = of_transfer});
  ctx_.loss_sum = Tensor(pool_.allocate(sizeof(float), MemoryCategory::kOther, "loss"), DType::kFp32, {1});
  if (device == DeviceType::kCuda) transfer_->connect(ctx_.loss_sum);
  if (options.parallel.use_distributed_optimizer)
    shard_ = {.rank = data_parallel_.rank(), .ranks = data_parallel_.size()};
  gpt_.parameters->allocate(pool_, options.model.params_dtype, options.train.main_grads_dtype, shard_.ranks);
  shared_gradients_ = std::make_unique<SharedGradients>(tensor_, *gpt_.parameters, pool_, shard_);
  build_optimizer();
  ctx_.policies = stash_policies(options.train);
  ctx_.seed = static_cast<std::uint64_t>(options.train.seed);
  ctx_.planned_for = options.train.device;
  ctx_.deterministic = options.train.deterministic_mode;
  step_parameters_ = allocate_one<StepParameters>(pool_, "step parameters");
  allocate_staging();
  build_actions();
  fill_table();
}

GptFactories TrainingModel::factories() {
  GptFactories factories = tensor_parallel_factories(options_.model, tensor_);
  factories.core_attention = context_parallel_attention(options_.parallel.cp_comm_type, context_);
  return factories;
}

void TrainingModel::make_groups() {
  loss_group_ = data_parallel_.duplicate("dp loss");
  stages_group_ = mesh_.pp().duplicate("pp sums");
  const int stages = mesh_.pp().size(), last = stages - 1;
  const bool tied = !options_.model.untie_embeddings_and_output_weights;
  if (stages == 1 || !tied || pipeline_.placement.is_v) return;
  const bool has_end = stage() == 0 || stage() == last;
  const std::vector<int> ranks = has_end ? std::vector<int>{0, last} : std::vector<int>{stage()};
  embedding_group_ = mesh_.pp().subgroup(ranks, "embedding");
  if (!has_end) embedding_group_.reset();
}

std::vector<Communicator*> TrainingModel::groups() const {
  std::vector<Communicator*> groups{&data_parallel_, loss_group_.get(), stages_group_.get(), &tensor_.communicator()};
  if (context_.size() > 1) groups.push_back(&context_.communicator());
  if (embedding_group_) groups.push_back(embedding_group_.get());
  return groups;
}

void TrainingModel::build_optimizer() {
  all_parameters_ = build_gpt(options_.model, {}, default_factories()).parameters;
  std::vector<std::string> names;
  for (const ParameterUnit& unit : all_parameters_->units()) {
    for (const Parameter* parameter : unit.parameters) {
      for (const LogicalTensor& part : parameter->parts) names.push_back(part.name);
    }
  }
  const TrainingOptions& train = options_.train;
  optimizer_ = std::make_unique<AdamWOptimizer>(*gpt_.parameters, pool_,
                                                AdamWOptimizer::Spec{.beta1 = train.adam_beta1,
                                                                     .beta2 = train.adam_beta2,
                                                                     .eps = train.adam_eps,
                                                                     .weight_decay = train.weight_decay,
                                                                     .clip_grad = train.clip_grad,
                                                                     .exp_avg_dtype = train.exp_avg_dtype,
                                                                     .exp_avg_sq_dtype = train.exp_avg_sq_dtype,
                                                                     .all_names = std::move(names),
                                                                     .shard = shard_,
                                                                     .planned_for = train.device});
}

TrainingModel::~TrainingModel() {
  // Streams hold addresses of this object. A step that failed has told already.
  const auto wait = [](auto& streams) {
    try {
      streams.synchronize();
    } catch (const std::exception&) {
    }
  };
  wait(communication_);
  if (tensor_communication_) wait(*tensor_communication_);
  if (context_communication_) wait(*context_communication_);
  if (transfer_) wait(*transfer_);
  wait(compute_);
  if (std::uncaught_exceptions() > 0) return;  // the peers of a rank that failed are ended, not waited for
  for (Communicator* group : sharing_groups()) {
    try {
      group->unshare_memory();
    } catch (const std::exception&) {
    }
  }
}

void TrainingModel::allocate_staging() {
  const auto tokens = static_cast<std::size_t>(num_microbatches_ * options_.train.micro_batch_size * rank_length());
  constexpr std::size_t kPadding = 3 * 256;  // each of the three buffers is aligned
  constexpr std::size_t kSteps = 3;          // two pending, and the one before, whose end is when the next begins
  const std::size_t bytes = kSteps * (2 * tokens * sizeof(std::int32_t) + sizeof(StepParameters) + kPadding);
  host_arena_ = std::make_unique<HostArena>(pool_.device(), bytes, "step staging");
  for (std::size_t i = 0; i < kSteps; ++i) {
    const auto& step = host_.emplace_back(std::make_unique<HostStep>());
    step->tokens = host_arena_->allocate_as<std::int32_t>(tokens);
    step->labels = host_arena_->allocate_as<std::int32_t>(tokens);
    step->report = host_arena_->allocate_as<StepParameters>(1);
    if (pool_.device() != DeviceType::kPlan) *step->report = {};  // never what other runs left there
  }
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
  for (Communicator* group : sharing_groups()) {
    group->share_memory(arena_.block(), arena_.block_bytes(), 3 * digest_of(plans.train) + digest_of(plans.evaluate));
  }
}

// Those that send pieces of the step's memory around while something computes beside them.
std::vector<Communicator*> TrainingModel::sharing_groups() const {
  std::vector<Communicator*> groups;
  if (pool_.device() == DeviceType::kPlan) return groups;
  if (tensor_.overlaps()) groups.push_back(&tensor_.communicator());
  if (context_.size() > 1 && options_.parallel.cp_comm_type == ContextCommunication::kP2p) {
    groups.push_back(&context_.communicator());
  }
  return groups;
}

std::int64_t TrainingModel::tokens_per_step() const {
  return options_.train.global_batch_size * options_.model.seq_length;
}

TrainingModel::HostStep& TrainingModel::staged(int steps_ago) {
  const auto count = static_cast<std::int64_t>(host_.size());
  return *host_[static_cast<std::size_t>((steps_staged_ + count - steps_ago) % count)];
}

void TrainingModel::stage(const StepInput& input) {
  const std::int64_t length = options_.model.seq_length, mine = rank_length();
  const std::int64_t sequences = num_microbatches_ * options_.train.micro_batch_size;
  require(input.tokens.size() == static_cast<std::size_t>(sequences * (length + 1)),
          "StepInput::tokens has a wrong size");
  require(pending_steps_ < 2, "two steps are pending: read a result before the next step");
  ++steps_staged_;
  HostStep& step = last_step();
  step.input = input;
  Access access("stage tokens");
  access.add(step.tokens, static_cast<std::size_t>(sequences * mine) * 4, true);
  access.add(step.labels, static_cast<std::size_t>(sequences * mine) * 4, true);
  compute_.announce_host(access);
  if (pool_.device() == DeviceType::kPlan) return;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int32_t* from = input.tokens.data() + s * (length + 1);
    const std::int64_t run = context_.size() == 1 ? mine : mine / 2;  // of neighbouring tokens
    for (std::int64_t row = 0; row < mine; row += run) {
      const std::int64_t position = context_.part(length).position(row, mine);
      std::copy_n(from + position, run, step.tokens + s * mine + row);
      std::copy_n(from + position + 1, run, step.labels + s * mine + row);
    }
  }
}

void TrainingModel::load(const Action& action) {
  const std::int64_t sequences = options_.train.micro_batch_size;
  const std::int64_t tokens = sequences * rank_length();
  const auto m = static_cast<std::size_t>(action.microbatch);
  const auto column = static_cast<std::size_t>(action.column);
  arena_.begin_scope({.column = action.column, .segment = -1, .verb = kLoadScope});
  const HostStep& step = last_step();
  const GptPart& part = parts_[static_cast<std::size_t>(action.chunk)];
  Batch batch{.tokens = {},
              .labels = {},
              .sequences = sequences,
              .seq_length = rank_length(),
              .part = context_.part(options_.model.seq_length)};
  const auto copy = [&](const std::int32_t* from, const char* owner) {
    const Tensor to = ctx_.empty({tokens}, DType::kInt32, owner);
    copy_from_host(compute_, to.data, from + action.microbatch * tokens, to.bytes());
    return to;
  };
  if (part.has_embedding) batch.tokens = copy(step.tokens, "tokens");
  if (part.has_head) batch.labels = copy(step.labels, "labels");
  launch(compute_, WriteMicrobatchParameters{.value = {.iteration = step.input.iteration,
                                                       .first_sample = step.input.first_samples[m],
                                                       .loss_scale = 1.0f / static_cast<float>(tokens_per_step())},
                                             .out = microbatch_parameters_[column]});
  runner_->set_batch(action.column, batch, microbatch_parameters_[column]);
}

void TrainingModel::run(const Action& action) {
  const bool is_verb = action.kind >= ActionKind::kForward && action.kind <= ActionKind::kBackwardWeight;
  if (is_verb) return table_.run_one(action);  // SegmentRunner traces it by its segment's name
  const TraceRange range(compute_, compute_.instruments().trace, [&] { return to_string(action); });
  table_.run_one(action);
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
  action_entries_.clear();
  const Timeline* const timeline = compute_.instruments().timeline;
  for (const Action& action : actions) {
    if (proceeds && !proceeds(action)) return;
    if (timeline != nullptr) action_entries_.push_back(timeline->entries().size());
    run(action);
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
  transfer_->synchronize();
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
  const auto run_first_microbatch = [&](Mode mode, const std::vector<Action>& actions) {
    std::vector<Action> first;
    for (const Action& action : actions) {
      const bool zeroes = action.kind == ActionKind::kZeroGradients;
      if (zeroes || (is_of_microbatch(action.kind) && action.microbatch == 0)) first.push_back(action);
    }
    run_step(mode, first,
             {.iteration = 1,
              .first_samples = std::vector<std::int64_t>(static_cast<std::size_t>(num_microbatches_), 0),
              .tokens = tokens});
    compute_.synchronize();
  };
  transfer_->rehearse(true);
  run_first_microbatch(Mode::kTrain, train_actions_);
  run_first_microbatch(Mode::kEval, evaluate_actions_);
  transfer_->rehearse(false);
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

}  // namespace megalith

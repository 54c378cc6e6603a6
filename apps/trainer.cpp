#include "apps/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "apps/banner.h"
#include "apps/flags.h"
#include "apps/gemm_tuning.h"
#include "apps/host_memory.h"
#include "apps/peak_rate.h"
#include "apps/together.h"
#include "apps/version.h"
#include "core/base/counted.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/output_file.h"
#include "core/device/copy.h"
#include "core/device/cuda_device.h"
#include "core/device/cuda_memory.h"

namespace megalith {

namespace {

using Clock = std::chrono::steady_clock;

// Each rank's share of what this machine can give.
std::size_t memory_limit(Communicator& world) {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  const std::vector<std::string> names = world.host_all_gather(name);
  const auto local = static_cast<std::size_t>(std::count(names.begin(), names.end(), std::string(name)));
  return available_bytes() / local;
}

// Before anything is allocated: what the plan says will not fit the GPU.
void check_gpu_memory(const MemoryUse& planned) {
  const CudaMemory memory = cuda_memory();
  if (planned.total() <= memory.free) return;
  const auto gib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  std::vector<std::pair<std::size_t, std::string>> owners = {{planned.arena, "activations and temporaries"}};
  for (int c = 0; c < kNumMemoryCategories; ++c)
    owners.emplace_back(planned.persistent[static_cast<std::size_t>(c)], name_of(static_cast<MemoryCategory>(c)));
  std::sort(owners.rbegin(), owners.rend());
  std::string list;
  for (std::size_t i = 0; i < 4 && owners[i].first > 0; ++i)
    list += fmt::format("{}{} {:.2f}", i == 0 ? "" : ", ", owners[i].second, gib(owners[i].first));
  fail({.code = ExitCode::kOutOfMemory,
        .subject = "memory of the GPU",
        .expected = fmt::format("a run of at most {:.2f} GiB, free of {:.2f}", gib(memory.free), gib(memory.total)),
        .got = fmt::format("a forecast of {:.2f} GiB ({})", gib(planned.total()), list),
        .remedy = "lower --micro-batch-size, add --recompute-granularity full, --loss-chunk-size or bf16 optimizer "
                  "state (--exp-avg-dtype), or use more ranks with --use-distributed-optimizer or "
                  "--tensor-model-parallel-size",
        .show_place = false});
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

DataConfig data_config(const Options& options, const Tokenizer& tokenizer) {
  const TrainingOptions& train = options.train;
  DataConfig config{.data_path = options.data.data_path,
                    .split = options.data.split,
                    .seed = train.seed,
                    .seq_length = options.model.seq_length,
                    .vocab_size = tokenizer.vocab_size(),
                    .tokenizer = tokenizer.identity(),
                    .mock = options.data.mock_data,
                    .num_samples = samples_of_run({.train_samples = train.train_iters * train.global_batch_size,
                                                   .train_iters = train.train_iters,
                                                   .eval_interval = train.eval_interval,
                                                   .eval_iters = train.eval_iters,
                                                   .global_batch_size = train.global_batch_size})};
  config.num_samples.test = 0;  // evaluation reads the validation split
  if (train.skip_train) config.num_samples.train = 0;
  if (train.eval_iters == 0) config.num_samples.valid = 0;
  return config;
}

bool holds_moments(const LoadedCheckpoint& checkpoint) {
  const std::vector<TensorSpec> tensors = checkpoint.tensors();
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const TensorSpec& tensor) { return kind_of(tensor.name) == kExpAvgKind; });
}

}  // namespace

void complete_options(Options& options, const Tokenizer& tokenizer, int world) {
  ModelConfig& model = options.model;
  if (model.vocab_size != 0 && model.vocab_size < tokenizer.vocab_size() &&
      options.data.tokenizer_type != TokenizerType::kNull) {
    refuse_usage("--vocab-size", fmt::format("0 or at least the tokenizer's {}", tokenizer.vocab_size()),
                 std::to_string(model.vocab_size), "leave it out: the tokenizer says it");
  }
  model.vocab_size = std::max(model.vocab_size, tokenizer.vocab_size());
  resolve(model);
  validate(model);
  const auto data_parallel_size = static_cast<int>(mesh_sizes_of(options.parallel, world).dp);
  if (options.train.global_batch_size == 0)
    options.train.global_batch_size = options.train.micro_batch_size * data_parallel_size;
  check_step_size(options);
  schedule_of(pipeline_layout(options), count_microbatches(options.train, data_parallel_size));
  // The flag does not count the id that the null tokenizer adds, and is read again from checkpoints.
  const std::int64_t added = options.data.tokenizer_type == TokenizerType::kNull ? 1 : 0;
  model.vocab_size -= added;
  update_effective(options);
  model.vocab_size += added;
}

RunSetup prepare_run(const Options& options, int rank, int world, FoundCheckpoint found) {
  RunTokenizer tokenizer = run_tokenizer(options, found.checkpoint ? &*found.checkpoint : nullptr);
  if (rank == 0 && !tokenizer.note.empty()) log_warning(tokenizer.note);
  RunSetup setup{.options = options,
                 .tokenizer = std::move(tokenizer.tokenizer),
                 .files = {},
                 .found = std::move(found),
                 .data = {},
                 .plans = {}};
  if (rank == 0) setup.files = std::move(tokenizer.files);
  complete_options(setup.options, setup.tokenizer, world);
  setup.data = build_datasets(data_config(setup.options, setup.tokenizer));
  setup.plans = plan_steps(setup.options, rank, world, &setup.planned_persistent);
  return setup;
}

Trainer::Trainer(RunSetup setup, Communicator& world, const StopRequest& stop, Communicator* host_world)
    : setup_(std::move(setup)),
      options_(setup_.options),
      world_(world),
      stop_(stop),
      stop_file_(options_.train.stop_file),
      mesh_(Mesh::create(world, mesh_sizes_of(options_.parallel, world.size()))) {
  if (options_.train.check_hazards) hazards_ = std::make_unique<HazardChecker>();
  waits_.suppressed = options_.train.suppress_wait;
  const bool on_cpu = options_.train.device == DeviceType::kCpu;
  const bool saves_async = options_.checkpoint.async_save && !options_.train.skip_train;
  if (saves_async) save_group_ = (host_world == nullptr ? world_ : *host_world).duplicate("checkpoint");
  // A GPU says itself when it is full.
  std::size_t limit = on_cpu ? memory_limit(world_) : 0;
  if (on_cpu && saves_async)
    limit = std::max(limit, setup_.plans.checkpoint_staging + 1) - setup_.plans.checkpoint_staging;
  if (!on_cpu) together(world_, [&] { check_gpu_memory(memory_use(setup_.plans, setup_.planned_persistent)); });
  together(world_, [&] {  // the groups are made before anything can fail
    model_ = std::make_unique<TrainingModel>(options_, options_.train.device, mesh_,
                                             Instruments{.hazards = hazards_.get(),
                                                         .waits = &waits_,
                                                         .captures = &captures_,
                                                         .observer = finite_.observer(),
                                                         .trace = &trace_},
                                             limit);
    model_->initialize();
    model_->use(setup_.plans);
    if (saves_async) async_save_ = std::make_unique<AsyncSave>(*model_, *save_group_, model_->replicas());
  });
  state_.seed = static_cast<std::uint64_t>(options_.train.seed);
  state_.tokenizer = setup_.tokenizer.identity();
  state_.program_version = program_version();
  state_.program_commit = program_commit();
  state_.config = config_of(options_);
  if (!options_.checkpoint.load.empty()) together(world_, [&] { load(); });  // a search that fails does so everywhere
  choose_gemm_algorithms(*model_, world_, options_.train.deterministic_mode, state_.gemm_algorithms);
  if (is_main()) {
    log_ = std::make_unique<StepLog>(options_.logging,
                                     StepLog::Run{.train_iters = options_.train.train_iters,
                                                  .ranks = world_.size(),
                                                  .peak_tflops = peak_tflops_of(options_, device_name(options_))});
  }
  const LoggingOptions& logging = options_.logging;
  if (logging.metrics_jsonl.empty() && logging.tensorboard_dir.empty() && logging.trace.empty()) return;
  together(world_, [&] {
    if (!is_main()) return;
    if (!logging.trace.empty()) const OutputFile probe(logging.trace, "trace");  // a wrong path is told now
    if (!logging.metrics_jsonl.empty())
      metrics_ = std::make_unique<MetricsLog>(logging.metrics_jsonl, options_, state_.step);
    if (!logging.tensorboard_dir.empty()) {
      // An evaluation alone does not take the place of steps.
      const TensorBoardStart start{.iteration = state_.step, .consumed_samples = state_.consumed_samples};
      tensorboard_ = std::make_unique<TensorBoardLog>(logging.tensorboard_dir,
                                                      options_.train.skip_train ? std::nullopt : std::optional(start));
    }
  });
}

Trainer::~Trainer() = default;

void Trainer::load() {
  const CheckpointOptions& wanted = options_.checkpoint;
  history_ = std::move(setup_.found.history);
  std::optional<LoadedCheckpoint> found = std::exchange(setup_.found.checkpoint, std::nullopt);
  if (!found) found = find_wanted(wanted, rank_sync(world_), &history_);
  if (!found) {
    // Saving and loading the same folder is how a run is restarted, its first start included.
    if (wanted.load == wanted.save && wanted.ckpt_step == 0) {
      if (is_main()) log_info("no checkpoint in " + wanted.load + " yet: starting from the seed");
      return;
    }
    refuse_no_checkpoint(wanted.load, "check the folder, or give the same folder to --save to start a new run in it");
  }
  if (found->state().tokenizer != setup_.tokenizer.identity()) {
    refuse_usage("--tokenizer-type of checkpoint " + found->path(), found->state().tokenizer,
                 setup_.tokenizer.identity(), "give the tokenizer's flags and files as they were");
  }
  if (!wanted.finetune && found->state().seed != state_.seed) {
    refuse_usage("--seed of checkpoint " + found->path(), std::to_string(found->state().seed),
                 std::to_string(state_.seed),
                 "the order of the data follows from it; --finetune starts a new order with these weights");
  }
  const bool weights_only = wanted.finetune || wanted.no_load_optim;
  if (!weights_only && !holds_moments(*found)) {
    refuse_usage("--load " + wanted.load,
                 "--finetune beside it: the checkpoint holds weights alone, as convert writes them",
                 "neither that nor --no-load-optim", "--finetune starts at step 0 with Adam's moments at 0");
  }
  const std::map<std::string, std::string>& saved = found->state().config;
  const std::string other_numbers = check_same_model(options_, found->path(), saved);
  load_tensors({.parameters = *model_->gpt().parameters,
                .all_parameters = &model_->all_parameters(),
                .optimizer = &model_->optimizer(),
                .stream = model_->compute()},
               *found, weights_only ? LoadScope::kWeights : LoadScope::kEverything);
  if (is_main()) add_small_files(*found, setup_.files);  // those that came with imported weights too
  if (!wanted.finetune) {
    state_.step = found->state().step;
    state_.consumed_samples = found->state().consumed_samples;
    state_.consumed_validation_samples = found->state().consumed_validation_samples;
    state_.skipped_steps = found->state().skipped_steps;
    if (!weights_only) state_.adam_count = found->state().adam_count;
    state_.gemm_algorithms = found->state().gemm_algorithms;
  } else if (found->state().step > 0) {
    history_.parent.reset();  // a run of its own, from step 0; imported weights are its first checkpoint
  }
  const StepParameters start{.adam_count = state_.adam_count};
  copy_from_host(model_->compute(), model_->step_parameters(), &start, sizeof(start));
  model_->compute().synchronize();
  fault_point("load.end");
  last_saved_step_ = !wanted.finetune && wanted.load == wanted.save ? state_.step : -1;
  if (is_main())
    log_info(fmt::format("loaded {} (step {}, {})", found->path(), found->state().step,
                         counted(found->state().consumed_samples, "sample")));
  const std::string changes = wanted.finetune ? "" : changed_flags(options_, saved);
  if (is_main() && !changes.empty()) log_warning("other flags than in " + found->path() + ": " + changes);
  if (is_main() && !other_numbers.empty()) {
    log_warning(fmt::format("--finetune: the weights of {} give other numbers than they were trained to give: {}",
                            found->path(), other_numbers));
  }
}

StepInput Trainer::input_of(const Dataset& dataset, std::int64_t consumed_samples, std::int64_t iteration,
                            std::vector<std::int32_t>& tokens) const {
  const std::int64_t length = options_.model.seq_length + 1;
  StepInput input{.iteration = iteration,
                  .learning_rate = static_cast<float>(learning_rate(options_.train.schedule, iteration - 1)),
                  .first_samples = {},
                  .tokens = {}};
  tokens.resize(static_cast<std::size_t>(model_->num_microbatches() * options_.train.micro_batch_size * length));
  std::size_t at = 0;
  for (std::int64_t m = 0; m < model_->num_microbatches(); ++m) {
    const SampleRange range = microbatch_samples({.consumed_samples = consumed_samples,
                                                  .microbatch = m,
                                                  .micro_batch_size = options_.train.micro_batch_size,
                                                  .data_parallel_size = mesh_.dp().size(),
                                                  .data_parallel_rank = mesh_.dp().rank()});
    input.first_samples.push_back(range.begin);
    for (std::int64_t sample = range.begin; sample < range.end; ++sample) {
      dataset.sample(sample % dataset.size(), std::span(tokens).subspan(at, static_cast<std::size_t>(length)));
      at += static_cast<std::size_t>(length);
    }
  }
  input.tokens = tokens;
  return input;
}

void Trainer::read_next() {
  next_ = input_of(setup_.data.train, state_.consumed_samples, state_.step + 1, next_tokens_);
}

bool Trainer::evaluates_after(std::int64_t step) const {
  const TrainingOptions& train = options_.train;
  return train.eval_interval > 0 && train.eval_iters > 0 &&
         (step % train.eval_interval == 0 || step == train.train_iters);
}

// The update of a step waits for the result of the one before: after a step that was skipped the parameters are still
// those it started from, so that it can be run again to find the reason. Computing never waits for the host.
bool Trainer::start_step() {
  fault_point("step.begin");
  const auto previous_updated = [this] {
    while (model_->pending_steps() > 1) finish_step(false);
    return !skipped_.has_value();
  };
  for (bool started = false; !started;) {
    explain_skip();
    if (over_budget()) return false;
    started = model_->train_step(next_, previous_updated);
  }
  ++state_.step;
  state_.consumed_samples += options_.train.global_batch_size;
  consumed_samples_.push_back(state_.consumed_samples);
  return true;
}

void Trainer::finish_step(bool evaluating) {
  fault_point("step.end");
  const StepResult result = model_->read_result();
  state_.skipped_steps += result.skipped ? 1 : 0;
  state_.adam_count = result.adam_count;
  const std::int64_t consumed_samples = consumed_samples_.front();
  consumed_samples_.pop_front();
  if (result.skipped) skipped_ = {result, consumed_samples - options_.train.global_batch_size};
  if (is_main() && ++steps_run_ == 2) log_memory();
  validation_loss_.reset();
  if (evaluating) evaluate(setup_.data.valid, "validation");
  log_step(result, consumed_samples);
}

void Trainer::evaluate(const Dataset& dataset, std::string_view name) {
  double sum = 0;
  const std::int64_t first = state_.consumed_validation_samples;
  state_.consumed_validation_samples += options_.train.eval_iters * options_.train.global_batch_size;
  for (std::int64_t i = 0; i < options_.train.eval_iters; ++i) {
    StepInput input;
    const std::optional<RankFailure> problem = failure_of_any(world_, [&] {
      input = input_of(dataset, first + i * options_.train.global_batch_size, state_.step + 1, tokens_);
    });
    if (problem) {
      data_problem_ = problem;
      return;
    }
    sum += model_->evaluate_step(input);
  }
  validation_loss_ = sum / static_cast<double>(options_.train.eval_iters);
  if (log_) log_->evaluation(name, state_.step, *validation_loss_);
  if (!options_.train.skip_train) return;  // else it goes with the step's metrics
  const EvaluationMetrics metrics{
      .iteration = state_.step, .consumed_samples = state_.consumed_samples, .validation_loss = *validation_loss_};
  if (metrics_) metrics_->write(metrics);
  if (tensorboard_) tensorboard_->write(metrics);
}

void Trainer::log_memory() {
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string text = "memory (MiB)";
  for (const auto& [owner, bytes] : memory_by_owner())
    if (bytes > 0) text += fmt::format(" | {}: {:.2f}", owner, mib(static_cast<std::size_t>(bytes)));
  const std::size_t planned = memory_use(setup_.plans, setup_.planned_persistent).total();
  const std::size_t measured = model_->pool().peak_allocated_bytes();
  text += fmt::format(" | arena used: {:.2f} of {:.2f} planned | peak: {:.2f}, planned {:.2f} | reserved: {:.2f}",
                      mib(model_->arena().touched_bytes()), mib(setup_.plans.block_bytes()), mib(measured),
                      mib(planned), mib(model_->pool().reserved_bytes()));
  if (async_save_) text += fmt::format(" | host, checkpoint staging: {:.2f}", mib(async_save_->bytes()));
  const std::size_t resident = resident_bytes();
  if (options_.train.device == DeviceType::kCpu) {
    text += fmt::format(" | process: {:.2f}, of it programs, host copies and data: {:.2f}", mib(resident),
                        mib(resident - std::min(resident, measured)));
  }
  if (options_.train.device == DeviceType::kCuda) {
    const CudaMemory device = cuda_memory();
    const std::size_t used = device.total - device.free;
    text += fmt::format(" | device: {:.2f} in use, of it contexts, kernels and libraries: {:.2f} | process: {:.2f}",
                        mib(used), mib(used - std::min(used, model_->pool().reserved_bytes())), mib(resident));
  }
  log_info(text);
}

std::vector<std::pair<std::string, std::int64_t>> Trainer::memory_by_owner() const {
  const MemoryUse use = memory_use(setup_.plans, setup_.planned_persistent);
  std::vector<std::pair<std::string, std::int64_t>> owners;
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    std::size_t bytes = model_->pool().allocated_by_category()[static_cast<std::size_t>(c)];
    if (category == MemoryCategory::kActivations) bytes -= use.arena;
    if (bytes > 0) owners.emplace_back(name_of(category), static_cast<std::int64_t>(bytes));
  }
  std::size_t kept = 0;
  for (const auto& [kind, bytes] : use.activations) {
    owners.emplace_back("activations " + kind, static_cast<std::int64_t>(bytes));
    kept += bytes;
  }
  owners.emplace_back("step temporaries", static_cast<std::int64_t>(use.arena - kept));
  return owners;
}

void Trainer::log_step(const StepResult& result, std::int64_t consumed_samples) {
  const std::optional<double> save_stall = std::exchange(save_stall_, std::nullopt);
  if (!is_main()) return;
  const double tokens = static_cast<double>(model_->tokens_per_step());
  const StepMetrics metrics{
      .iteration = result.iteration,
      .train_iters = options_.train.train_iters,
      .consumed_samples = consumed_samples,
      .global_batch_size = options_.train.global_batch_size,
      .lm_loss = result.loss,
      .grad_norm = result.grad_norm,
      .learning_rate = learning_rate(options_.train.schedule, result.iteration - 1),
      .tokens_per_second = tokens / result.seconds,
      .tflops_per_device = flops_per_token(options_.model) * tokens / result.seconds / world_.size() * 1e-12,
      .step_ms = result.seconds * 1e3,
      .enqueue_ms = result.enqueue_seconds * 1e3,
      .memory_peak_bytes = static_cast<std::int64_t>(model_->pool().peak_allocated_bytes()),
      .validation_loss = validation_loss_,
      .skipped = result.skipped,
      .skipped_steps = state_.skipped_steps,
      .memory_bytes = memory_by_owner(),
      .checkpoint_stall_ms = save_stall ? std::optional(*save_stall * 1e3) : std::nullopt};
  if (metrics_) metrics_->write(metrics);
  if (tensorboard_) tensorboard_->write(metrics);
  log_->step(metrics);
}

bool Trainer::should_stop() {
  const TrainingOptions& train = options_.train;
  const bool interval = train.exit_interval > 0 && state_.step % train.exit_interval == 0;
  const bool late = train.exit_duration_in_mins > 0 && seconds_since(started_) > 60.0 * train.exit_duration_in_mins;
  const bool file = is_main() && stop_file_.exists();
  check_data();
  const bool mine =
      stop_.requested.load(std::memory_order_relaxed) || late || file || cannot_save() || data_error_ || data_problem_;
  if (!world_.host_any(mine || interval)) return false;
  if (file) stop_file_.remove();
  if (!data_problem_) {
    data_problem_ = failure_of_any(world_, [this] {
      if (data_error_) std::rethrow_exception(data_error_);
    });
  }
  return true;
}

ExitCode Trainer::run() {
  const ExitCode code = run_steps();
  model_->wait_for_parameters();
  write_trace();
  if (!failure_.empty()) throw EveryRankFailed(code, data_problem_ ? data_problem_->rank : 0, failure_);
  return code;
}

ExitCode Trainer::run_steps() {
  const AbortOnUnwind guard(world_);  // a rank that fails must not leave its streams, or its peers, waiting
  const ExitCode code = step_loop();
  finish_save();
  if (failed_saves_ > 0 && is_main()) log_warning(counted(failed_saves_, "checkpoint") + " could not be saved");
  return code;
}

ExitCode Trainer::step_loop() {
  ExitCode code = ExitCode::kOk;
  if (options_.train.skip_train) {
    evaluate(setup_.data.valid, "validation");
    if (data_problem_) return end_for_data(false);
  } else if (is_main() && state_.step >= options_.train.train_iters) {
    log_info(fmt::format("nothing to do: the checkpoint's step {} is not before --train-iters {}", state_.step,
                         options_.train.train_iters));
  }
  const bool trains = !options_.train.skip_train && state_.step < options_.train.train_iters;
  if (trains) data_problem_ = failure_of_any(world_, [this] { read_next(); });
  if (data_problem_) return end_for_data(false);  // there is nothing new to save
  while (trains && state_.step < options_.train.train_iters) {
    profile();
    trace();
    if (!start_step()) return ExitCode::kNumeric;
    if (found_hazards()) return ExitCode::kInternal;  // before anything is done with numbers that raced
    check_calls();
    poll_save();
    const bool last = state_.step == options_.train.train_iters;
    const std::int64_t interval = options_.checkpoint.save_interval;
    const bool saves = last || (interval > 0 && state_.step % interval == 0);
    if (!last) read_ahead();
    const bool asked = should_stop();
    bool stops = asked && (!last || data_problem_);
    const bool evaluates = evaluates_after(state_.step);
    const std::int64_t hash_interval = options_.train.check_weight_hash_interval;
    const bool compares = hash_interval > 0 && state_.step % hash_interval == 0;
    // The result of a step is read while the next one is computed, unless something waits for it.
    const int may_run = saves || evaluates || stops || compares ? 0 : 1;
    while (model_->pending_steps() > may_run) finish_step(evaluates && model_->pending_steps() == 1);
    explain_skip();
    stops = stops || data_problem_;  // that the evaluation met
    if (over_budget() || (compares && !replicas_agree())) return ExitCode::kNumeric;
    bool saved = true;
    if (saves) saved = save();
    if (last || stops) saved = finish_save() && saved;
    if ((saves || last || stops) && cannot_save()) return end_for_saves();
    if (last && !saved) code = ExitCode::kFileIo;  // the run's result is lost
    if (stops) {
      saved = save();
      saved = finish_save() && saved;
      if (data_problem_) return end_for_data(saved);
      if (is_main()) log_info(fmt::format("stopped on request after step {}", state_.step));
      code = saved ? ExitCode::kStoppedOnRequest : ExitCode::kFileIo;
      break;
    }
  }
  if (found_hazards()) return ExitCode::kInternal;  // of an evaluation or a checkpoint
  // Also one that came too late to end this run. An evaluation may run beside the training that it is meant for.
  if (is_main() && !options_.train.skip_train && stop_file_.exists()) stop_file_.remove();
  return code;
}

}  // namespace megalith

#include "apps/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/config/checkpoint_options.h"
#include "apps/config/data_options.h"
#include "apps/config/logging_options.h"
#include "apps/config/memory_options.h"
#include "apps/config/training_options.h"
#include "apps/flags/flags.h"
#include "apps/planning/memory_checks.h"
#include "apps/planning/offload_choice.h"
#include "apps/program/version.h"
#include "apps/train/gemm_tuning.h"
#include "core/base/counted.h"
#include "core/base/files/fault.h"
#include "core/base/log.h"
#include "core/base/machine/host_memory.h"
#include "core/base/seconds_since.h"
#include "core/device/cuda_device.h"
#include "core/device/near_cpus.h"

namespace megalith {

RunInstruments::RunInstruments(const Options& options, Communicator& world)
    : guard(options.train, world), window(options.logging, world), waits{.suppressed = options.train.suppress_wait} {}

Instruments RunInstruments::of_streams() {
  return {.hazards = guard.hazards(),
          .waits = &waits,
          .captures = &captures,
          .observer = guard.observer(),
          .trace = window.trace()};
}

Trainer::Trainer(RunSetup setup, Communicator& world, const StopRequest& stop, Communicator* host_world)
    : setup_(std::move(setup)),
      world_(world),
      stop_(stop),
      stop_file_(options().train.stop_file),
      instruments_(options(), world),
      mesh_(Mesh::create(world, setup_.config.mesh)),
      log_(setup_, world.rank(), world.size()) {
  build(host_world == nullptr ? world : *host_world);
  const TrainingOptions& train = options().train;
  state_.seed = static_cast<std::uint64_t>(train.seed);
  state_.tokenizer = setup_.tokenizer.identity();
  state_.program_version = program_version();
  state_.program_commit = program_commit();
  state_.config = config_of(options());
  if (!options().checkpoint.load.empty())
    on_all_ranks(world_, [&] { checkpoints_->load(state_); });  // a failed search fails on all ranks
  progress_.first = progress();
  progress_.end = end_of_run(train, progress_.first);
  if (train.train_samples > 0) setup_.options.train.train_iters = progress_.end.at.steps;
  take_data();
  choose_gemm_algorithms(*rank_, *step_, world_, options().deterministic_mode, state_.gemm_algorithms);
  on_all_ranks(world_, [&] { log_.open(state_); });
}

void Trainer::build(Communicator& host_world) {
  const bool on_cpu = options().device == DeviceType::kCpu;
  const bool saves_async = options().checkpoint.async_save && !options().train.skip_train;
  if (saves_async) save_group_ = host_world.duplicate("checkpoint");
  const std::size_t staging = setup_.plans.checkpoint_staging;
  const std::size_t host_bytes = setup_.host_bytes();
  check_host_memory(setup_.plans, staging, world_, host_bytes);
  // A GPU reports itself if it is full.
  std::size_t limit = on_cpu ? share_of_rank(host_bytes, ranks_of_host(world_)) : 0;
  const std::size_t copies = setup_.plans.host.peak_bytes + staging;
  if (limit > 0) limit = std::max(limit, copies + 1) - copies;
  if (!on_cpu) check_gpu_memory(memory_use(setup_.plans), gpu_of_rank(world_), world_);
  on_all_ranks(world_, [&] {  // the groups exist ahead of any failure
    rank_ = std::make_unique<Rank>(options(), setup_.config, options().device, mesh_, instruments_.of_streams(), limit,
                                   setup_.plans.offload.points);
    if (setup_.customize) setup_.customize(*rank_);
    step_ = std::make_unique<Step>(*rank_);
    initialize(*rank_);
    step_->use(setup_.plans);
    step_->time_copies([this](std::int64_t iteration) { return times_copies(iteration); });
    step_->time_parts([this](std::int64_t iteration) {
      const LoggingOptions& logging = options().logging;
      const bool logs = iteration % logging.log_interval == 0 || iteration == options().train.train_iters;
      return logs ? logging.timing_log_level : 0;
    });
    checkpoints_ = std::make_unique<RunCheckpoints>(setup_, *rank_, *step_, world_, save_group_.get());
  });
  samples_ = std::make_unique<StepSamples>(options(), setup_.config, mesh_, setup_.data.sets);
}

// Builds the data from the start of the run, which its checkpoint gives.
void Trainer::take_data() {
  RunData& data = setup_.data;
  on_all_ranks(world_, [&] {
    build_data(data, {.options = options(), .tokenizer = setup_.tokenizer, .start = data_start(state_)});
  });
  state_.data_order_samples = data.order_samples;
  if (!is_main()) return;
  for (const std::string& note : data.notes) log_info(note);
  if (!data.warning.empty()) log_warning(data.warning);
}

void Trainer::pass_window() {
  if (!instruments_.window.changes(state_.step + 1)) return;
  while (step_->pending() > 0) finish_step(false);
  instruments_.window.advance(state_.step + 1, rank_->streams.compute);
  step_->run_eagerly(instruments_.window.under_way());
}

void Trainer::explain_skip() {
  const std::optional<RankFailure> problem = instruments_.guard.explain(*rank_, *step_, *samples_);
  if (problem) failure_.data = problem;
}

bool Trainer::ends_for(std::string problem) {
  failure_.message = std::move(problem);
  return !failure_.message.empty();
}

// Starts a step. Its update waits for the result of the previous step. After a skipped step the parameters are thus
// unchanged, and the step can run again to find the reason, or with more capacity for rows. Computation never waits for
// the host.
void Trainer::start_step() {
  fault_point("step.begin");
  samples_->count_next(world_);
  const auto previous_updated = [this] {
    while (step_->pending() > 1) finish_step(false);
    return !instruments_.guard.has_skipped() && !progress_.lacked_room;
  };
  for (bool started = false; !started;) {
    if (progress_.lacked_room) end_step(with_room(*std::exchange(progress_.lacked_room, std::nullopt)), false);
    explain_skip();
    if (ends_for(instruments_.guard.over_budget(state_))) return;
    started = step_->train(samples_->next(), previous_updated);
  }
  progress_.begun_after.push_back(progress());
  ++state_.step;
  ++progress_.started;
  state_.consumed_samples += batch_after(options().train, state_.consumed_samples);
}

void Trainer::finish_step(bool evaluating) {
  fault_point("step.end");
  const StepResult result = step_->read_result();
  if (!result.lacks_room) return end_step(result, evaluating);
  if (step_->pending() == 0) return end_step(with_room(result), evaluating);
  progress_.lacked_room = result;  // the following step is dropped first
}

void Trainer::end_step(const StepResult& result, bool evaluating) {
  state_.skipped_steps += result.skipped ? 1 : 0;
  state_.adam_count = result.adam_count;
  const RunProgress before = progress_.begun_after.front();
  progress_.begun_after.pop_front();
  if (result.skipped) instruments_.guard.skipped(result, before.samples);
  ++progress_.finished;
  log_memory();
  progress_.validation_loss.reset();
  if (evaluating) evaluate();
  log_.step(*rank_, result,
            {.before = before,
             .batch = batch_after(options().train, before.samples),
             .skipped_steps = state_.skipped_steps,
             .validation_loss = progress_.validation_loss,
             .checkpoint_stall = checkpoints_->take_stall(),
             .regrows = progress_.regrows,
             .splits = result.split ? world_.host_gather(*result.split) : std::vector<StepSplit>(),
             .offload = measured_copies(result)});
}

// True for the third step after warmup and captures, at most every tenth step with a log line, and the last step.
bool Trainer::times_copies(std::int64_t iteration) const {
  constexpr std::int64_t kAhead = 3, kEvery = 10;
  const TrainingOptions& train = options().train;
  const bool graphs = options().memory.cuda_graph_impl != CudaGraphImpl::kNone;
  const std::int64_t first = progress_.first.steps + kAhead + (graphs ? options().memory.cuda_graph_warmup_steps : 0);
  const std::int64_t each = std::max<std::int64_t>(options().logging.log_interval, 1);
  const std::int64_t every = (kEvery + each - 1) / each * each;
  if (!offloads(options()) || iteration > train.train_iters) return false;
  if (iteration == train.train_iters) return true;
  return iteration + 1 < train.train_iters && (iteration == first || (iteration > first + 1 && iteration % every == 0));
}

std::vector<OffloadStats> Trainer::measured_copies(const StepResult& result) {
  const LoggingOptions& logging = options().logging;
  const bool is_written =
      !logging.metrics_jsonl.empty() || !logging.tensorboard_dir.empty() || !logging.wandb_project.empty();
  if (!offloads(options()) || !(is_written || times_copies(result.iteration))) return {};
  const std::size_t host = rank_->offload ? rank_->offload->host.block_bytes() : 0;
  OffloadStats mine = measured_offload(setup_.plans, result, step_->driver_bytes(), host);
  if (mine.timed) {
    mine.nodes = nodes_of(rank_->offload->host.block(), host);
    if (options().device == DeviceType::kCuda) mine.near_node = node_of_pci(cuda_bus_id());
  }
  return world_.host_gather(mine);
}

// Logs memory once: after the second step, and after the capture of graphs if there will be one.
void Trainer::log_memory() {
  if (progress_.memory_logged) return;
  const GraphedRunner* const graphs = rank_->graphs.get();
  const bool waits = graphs != nullptr && world_.host_any(plans().graphs.graphs > 0 && !graphs->complete());
  const bool last = state_.step == options().train.train_iters;
  if (waits && last) log_.no_graphs();
  if (progress_.finished < 2 || (waits && !last)) return;
  progress_.memory_logged = true;
  if (graphs != nullptr && !waits) log_.graphs(world_.host_gather(graphs->stats()));
  log_.memory(*rank_, checkpoints_->staging_bytes());
}

// Mean loss over tokens; none if the data cannot be read.
std::optional<double> Trainer::loss_of(const StepSamples::Evaluated& set, std::int64_t first, std::int64_t batches) {
  double sum = 0, trained = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    StepInput input;
    const std::int64_t begin = first + i * options().train.global_batch_size;
    const std::optional<RankFailure> problem =
        failure_of_any(world_, [&] { input = samples_->evaluation(set, begin, state_.step + 1); });
    if (problem) {
      failure_.data = problem;
      return std::nullopt;
    }
    samples_->count(world_, input);
    Evaluation evaluation = step_->evaluate(input);
    for (; lacks_room(evaluation.room_needed); evaluation = step_->evaluate(input))
      make_room(evaluation.room_needed, fmt::format("the evaluation after step {}", state_.step));
    // Without marks all evaluations have equally many tokens.
    const double weight = input.marks.empty() ? 1 : static_cast<double>(evaluation.trained);
    sum += weight * static_cast<double>(evaluation.loss);
    trained += weight;
  }
  return trained > 0 ? sum / trained : 0;
}

void Trainer::evaluate() {
  const TrainingOptions& train = options().train;
  const Dataset& data = samples_->data().valid;
  const bool all = train.full_validation && !options().data.mock_data;  // which has no end
  const std::int64_t batch = train.global_batch_size, first = all ? 0 : state_.consumed_validation_samples;
  const std::int64_t batches = all ? (data.size() + batch - 1) / batch : train.eval_iters;
  if (!all) state_.consumed_validation_samples += batches * batch;
  progress_.validation_loss = loss_of({data, all}, first, batches);
  if (progress_.validation_loss) log_.evaluation("validation", state_, *progress_.validation_loss, train.skip_train);
}

// Evaluates the test data, if there are any, at the end of the run; each sample at most once.
void Trainer::test() {
  const TrainingOptions& train = options().train;
  const Dataset& data = samples_->data().test;
  if (data.size() == 0 || failure_.data) return;
  const std::int64_t all = (data.size() + train.global_batch_size - 1) / train.global_batch_size;
  const std::optional<double> loss = loss_of({data, true}, 0, std::min(all, train.eval_iters));
  if (loss) log_.evaluation("test", state_, *loss, true);
}

bool Trainer::should_stop() {
  const TrainingOptions& train = options().train;
  const bool late =
      train.exit_duration_in_mins > 0 && seconds_since(progress_.begun) > 60.0 * train.exit_duration_in_mins;
  const bool file = is_main() && stop_file_.exists();
  if (is_main()) samples_->check_files();
  const bool mine = stop_.requested.load(std::memory_order_relaxed) || late || file || checkpoints_->cannot_save() ||
                    samples_->failed() || failure_.data;
  if (!world_.host_any(mine || is_due(train.exit_interval))) return false;
  if (file) stop_file_.remove();
  if (!failure_.data) failure_.data = failure_of_any(world_, [this] { samples_->rethrow(); });
  progress_.asked_to_stop = !is_due(train.exit_interval);
  return true;
}

// Ends the run. Its steps are valid: every sample was read ahead of the check that its files are unchanged.
ExitCode Trainer::end_for_data(bool saved) {
  const bool saves = !options().checkpoint.save.empty() && progress_.started > 0;
  const char* const kept = !saves ? "" : saved ? " and saved" : ", but could not be saved";
  const std::string where =
      state_.step == 0 ? "before the first step" : fmt::format("after step {}, which is valid", state_.step);
  failure_.message = fmt::format("{}; the run ends {}{}", failure_.data->message, where, kept);
  return failure_.data->code;
}

void Trainer::report_left_over() const {
  const std::int64_t left = progress_.end.left_over;
  if (left == 0 || !is_main()) return;
  log_info(fmt::format("{} of --train-samples {} left over: the next step would need {}", left,
                       options().train.train_samples, batch_after(options().train, state_.consumed_samples)));
}

ExitCode Trainer::run() {
  ExitCode code = ExitCode::kOk;
  {
    const AbortOnUnwind guard(world_);  // a failed rank must not leave its streams or peers waiting
    code = step_loop();
    checkpoints_->finish(state_.step);
    step_->end_warm_up();
  }
  if (checkpoints_->failed() > 0 && is_main())
    log_warning(counted(checkpoints_->failed(), "checkpoint") + " could not be saved");
  rank_->wait_for_parameters();
  while (instruments_.window.under_way() && step_->pending() > 0) finish_step(false);
  instruments_.window.finish();
  log_.finish(code);
  if (!failure_.message.empty())
    throw EveryRankFailed({.rank = failure_.data ? failure_.data->rank : 0, .code = code, .message = failure_.message});
  return code;
}

// Ends a run that has trained all its steps.
void Trainer::complete(ExitCode code) {
  report_left_over();
  if (code == ExitCode::kOk && !progress_.asked_to_stop) test();
}

ExitCode Trainer::step_loop() {
  ExitCode code = ExitCode::kOk;
  NumericsGuard& guard = instruments_.guard;
  const TrainingOptions& train = options().train;
  const bool trains = !train.skip_train && state_.step < train.train_iters;
  begin(trains);
  if (failure_.data) return end_for_data(false);  // there is no new state to save
  while (trains && state_.step < train.train_iters) {
    pass_window();
    enter_stage();
    start_step();
    if (!failure_.message.empty()) return ExitCode::kNumeric;
    if (guard.found_hazards()) return ExitCode::kInternal;  // ahead of any use of numbers with a race
    guard.check_calls(*rank_);
    checkpoints_->poll();
    if (next_trained().steps == train.train_iters) pass_steps();
    const bool last = state_.step == train.train_iters;
    const bool saves = last || is_due(options().checkpoint.save_interval);
    if (!last) samples_->read_ahead(next_trained());
    const bool asked = should_stop();
    bool stops = asked && (!last || failure_.data);
    const bool evaluates = train.evaluates() && (last || is_due(train.eval_interval));
    const bool compares = is_due(train.check_weight_hash_interval);
    // The result of a step is read during the next step, unless something waits for it.
    const int may_run = saves || evaluates || stops || compares ? 0 : 1;
    while (step_->pending() > may_run) finish_step(evaluates && step_->pending() == 1);
    explain_skip();
    stops = stops || failure_.data;  // found by the evaluation
    if (ends_for(guard.over_budget(state_))) return ExitCode::kNumeric;
    if (compares && ends_for(guard.difference_of_replicas(*rank_, state_.step))) return ExitCode::kNumeric;
    bool saved = true;
    if (saves) saved = checkpoints_->save(state_);
    if (last || stops) saved = checkpoints_->finish(state_.step) && saved;
    if ((saves || last || stops) && checkpoints_->cannot_save()) {
      failure_.message = checkpoints_->failure(state_.step);
      return ExitCode::kFileIo;
    }
    if (last && !saved) code = ExitCode::kFileIo;  // the run's result is lost
    if (stops) {
      saved = checkpoints_->save(state_);
      saved = checkpoints_->finish(state_.step) && saved;
      if (failure_.data) return end_for_data(saved);
      if (is_main()) log_info(fmt::format("stopped on request after step {}", state_.step));
      code = saved ? ExitCode::kStoppedOnRequest : ExitCode::kFileIo;
      break;
    }
    pass_steps();
  }
  if (trains && progress_.started == 0 && !(checkpoints_->save(state_) && checkpoints_->finish(state_.step)))
    code = ExitCode::kFileIo;  // all steps are skipped
  if (trains && state_.step == train.train_iters) complete(code);
  if (failure_.data) return end_for_data(true);
  if (guard.found_hazards()) return ExitCode::kInternal;  // of an evaluation or a checkpoint
  // Removes also a file that came too late to end this run. An evaluation leaves it, as a concurrent training run may
  // be meant.
  if (is_main() && !train.skip_train) stop_file_.remove();
  return code;
}

}  // namespace megalith

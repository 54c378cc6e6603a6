#include "apps/train/run_log.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/config/dispatcher_choice.h"
#include "apps/config/logging_options.h"
#include "apps/config/memory_options.h"
#include "apps/config/training_options.h"
#include "apps/train/banner.h"
#include "core/base/files/output_file.h"
#include "core/base/log.h"
#include "core/base/machine/host_memory.h"
#include "core/base/text/units.h"
#include "core/device/cuda_memory.h"
#include "core/optim/lr_schedule.h"

namespace megalith {

namespace {

// Used fraction of the capacity for rows. If all tokens arrive, the capacity for tokens always suffices and is ignored.
std::optional<double> room_used(const ExpertRoom& room, const ExpertRoom& needed, bool all_arrive) {
  if (room.rows == 0) return std::nullopt;
  const auto share = [](std::int64_t used, std::int64_t of) {
    return static_cast<double>(used) / static_cast<double>(of);
  };
  const double rows = share(needed.rows, room.rows);
  return all_arrive ? rows : std::max(share(needed.arrived, room.arrived), rows);
}

// Mean over ranks of a part of the step; none if it was not timed.
template <class Member>
std::optional<double> mean_ms(const std::vector<StepSplit>& ranks, Member member) {
  double sum = 0;
  for (const StepSplit& rank : ranks) {
    const std::optional<double> seconds = rank.*member;
    if (!seconds) return std::nullopt;
    sum += *seconds;
  }
  return ranks.empty() ? std::nullopt : std::optional(1e3 * sum / static_cast<double>(ranks.size()));
}

bool is_timed(const std::vector<OffloadStats>& ranks) { return std::ranges::any_of(ranks, &OffloadStats::timed); }

std::optional<OffloadMetrics> offload_of(const std::vector<OffloadStats>& ranks, std::size_t stages) {
  if (std::ranges::all_of(ranks, [](const OffloadStats& rank) { return rank.slots == 0; })) return std::nullopt;
  OffloadMetrics metrics;
  OffloadStats& sums = metrics.sums;
  std::int64_t driver = 0;
  bool driver_reports = is_timed(ranks);
  for (const OffloadStats& rank : ranks) {
    for (const auto member : {&OffloadStats::slots, &OffloadStats::bytes_out, &OffloadStats::bytes_back,
                              &OffloadStats::host_bytes, &OffloadStats::saving_bytes, &OffloadStats::saved_bytes})
      sums.*member += rank.*member;
    driver += rank.saved_driver_bytes.value_or(0);
    driver_reports &= rank.slots == 0 || rank.saved_driver_bytes.has_value();
  }
  if (driver_reports) sums.saved_driver_bytes = driver;
  if (is_timed(ranks)) metrics.stages = worst_of_stages(ranks, stages);
  return metrics;
}

// Logs a step with timed copies.
void log_offload(const std::vector<OffloadStats>& stages, std::int64_t iteration) {
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const std::string whose = stages.size() > 1 ? fmt::format(" of stage {}", stage) : "";
    log_info(fmt::format("offload{} in step {} | {}", whose, iteration, describe_measured(stages[stage])));
  }
}

}  // namespace

RunLog::RunLog(const RunSetup& setup, int rank, int world)
    : setup_(setup), flops_(flops_of(setup.options)), world_(world), writes_(rank == 0) {}

void RunLog::open(const TrainState& state) {
  if (!writes_) return;
  max_planned_ = memory_use(setup_.plans).total();
  const Options& options = setup_.options;
  const LoggingOptions& logging = options.logging;
  log_ = std::make_unique<StepLog>(logging,
                                   StepLog::TrainingRun{.ranks = world_,
                                                        .peak_tflops = peak_tflops_of(options, device_name(options)),
                                                        .on_cpu = options.device == DeviceType::kCpu});
  if (!logging.trace.empty()) const OutputFile probe(logging.trace, "trace");  // fails now for a wrong path
  if (!logging.metrics_jsonl.empty())
    metrics_ = std::make_unique<MetricsLog>(logging.metrics_jsonl, options, state.step);
  if (!logging.wandb_project.empty()) {
    wandb_ = std::make_unique<WandbLog>(options, state.step);
    log_info(fmt::format("run of Weights & Biases in {0}; wandb sync {0} uploads it", wandb_->folder()));
  }
  if (logging.tensorboard_dir.empty()) return;
  // An evaluation replaces no steps.
  const RunProgress start{.steps = state.step, .samples = state.consumed_samples};
  tensorboard_ = std::make_unique<TensorBoardLog>(
      logging.tensorboard_dir, options.train.skip_train ? std::nullopt : std::optional(start),
      TensorBoardIntervals{.entries = logging.tensorboard_log_interval, .details = logging.log_interval});
}

void RunLog::step(const Rank& rank, const StepResult& result, const StepFacts& facts) {
  if (!writes_) return;
  const TrainingOptions& train = setup_.options.train;
  const LoggingOptions& logging = setup_.options.logging;
  const auto tokens = static_cast<double>(result.of_batch.tokens), pairs = static_cast<double>(result.of_batch.pairs);
  const auto rows = static_cast<double>(setup_.config.step_tokens());
  const bool has_marks = setup_.config.marks.any();
  const std::optional<double>& stall = facts.checkpoint_stall;
  const auto stages = static_cast<std::size_t>(setup_.config.mesh.pp);
  const std::optional<double> used =
      room_used(setup_.plans.room, result.room_needed, dispatcher_of(setup_.options) == MoeTokenDispatcher::kAllGather);
  const StepMetrics metrics{
      .iteration = result.iteration,
      .train_iters = train.train_iters,
      .consumed_samples = facts.before.samples + facts.batch,
      .global_batch_size = facts.batch,
      .lm_loss = result.loss,
      .grad_norm = result.grad_norm,
      .learning_rate = learning_rate(train.schedule, facts.before),
      .tokens_per_second = tokens / result.seconds,
      .tflops_per_device = (flops_.per_token * tokens + flops_.per_pair * pairs) / result.seconds / world_ * 1e-12,
      .step_ms = result.seconds * 1e3,
      .enqueue_ms = result.enqueue_seconds * 1e3,
      .memory_peak_bytes = static_cast<std::int64_t>(rank.memory.pool.peak_allocated_bytes()),
      .skipped = result.skipped,
      .skipped_steps = facts.skipped_steps,
      .skipped_samples = facts.before.passed_samples > 0 ? std::optional(facts.before.passed_samples) : std::nullopt,
      .num_zeros =
          logging.log_num_zeros_in_grad ? std::optional(static_cast<std::int64_t>(result.grad_zeros)) : std::nullopt,
      .params_norm = logging.log_params_norm ? std::optional(result.params_norm) : std::nullopt,
      .load_balancing_loss = result.load_balancing_loss,
      .z_loss = result.router_z_loss,
      .trained_tokens = has_marks ? std::optional(result.of_batch.trained) : std::nullopt,
      .fill = has_marks ? std::optional(tokens / rows) : std::nullopt,
      .imbalance = has_marks ? std::optional(result.imbalance) : std::nullopt,
      .validation_loss = facts.validation_loss,
      .checkpoint_stall_ms = stall ? std::optional(*stall * 1e3) : std::nullopt,
      .experts = result.expert_loads,
      .expert_room_used = used,
      .expert_room_regrows = used ? std::optional(facts.regrows) : std::nullopt,
      .compute_ms = mean_ms(facts.splits, &StepSplit::compute),
      .communication_ms = mean_ms(facts.splits, &StepSplit::communication),
      .copies_ms = mean_ms(facts.splits, &StepSplit::copies),
      .host_ms = mean_ms(facts.splits, &StepSplit::host),
      .forward_ms = mean_ms(facts.splits, &StepSplit::forward),
      .backward_ms = mean_ms(facts.splits, &StepSplit::backward),
      .optimizer_ms = mean_ms(facts.splits, &StepSplit::optimizer),
      .offload = offload_of(facts.offload, stages),
      .memory_bytes = memory_by_owner(rank)};
  if (metrics_) metrics_->write(metrics);
  if (tensorboard_) tensorboard_->write(metrics);
  if (wandb_) wandb_->write(metrics);
  log_->step(metrics);
  if (metrics.offload) log_offload(metrics.offload->stages, result.iteration);
  if (const std::string problem = describe_misplaced(facts.offload); !problem.empty() && !std::exchange(warned_, true))
    log_warning(problem);
}

void RunLog::evaluation(const char* split, const TrainState& state, double loss, bool alone) {
  if (!writes_) return;
  log_->evaluation(split, state.step, loss);
  if (!alone) return;
  const EvaluationMetrics metrics{
      .split = split, .iteration = state.step, .consumed_samples = state.consumed_samples, .loss = loss};
  if (metrics_) metrics_->write(metrics);
  if (tensorboard_) tensorboard_->write(metrics);
  if (wandb_) wandb_->write(metrics);
}

void RunLog::finish(ExitCode code) const {
  if (wandb_) wandb_->finish(static_cast<int>(code));
}

void RunLog::graphs(const std::vector<GraphedRunner::Stats>& ranks) const {
  if (!writes_) return;
  const auto spread = [&](const auto member) {
    const auto [least, most] = std::ranges::minmax(ranks, {}, member);
    return least.*member == most.*member ? fmt::to_string(most.*member)
                                         : fmt::format("{} to {}", least.*member, most.*member);
  };
  const auto most = [&](const auto member) { return std::ranges::max(ranks, {}, member).*member; };
  using Stats = GraphedRunner::Stats;
  log_info(fmt::format("graphs | captured: {} of {} ops, {} nodes{} | memory: {:.2f} MiB | capture: {:.2f} s",
                       spread(&Stats::graphs), spread(&Stats::ops), spread(&Stats::nodes),
                       ranks.size() > 1 ? " per rank" : "", mib(most(&Stats::device_bytes)),
                       most(&Stats::capture_seconds)));
}

void RunLog::no_graphs() const {
  if (!writes_) return;
  const Options& options = setup_.options;
  log_warning(fmt::format("graphs: none was captured, as no step followed --cuda-graph-warmup-steps {}{}",
                          options.memory.cuda_graph_warmup_steps,
                          options.logging.trace.empty() ? "" : " outside of the window of --trace"));
}

void RunLog::memory(const Rank& rank, std::size_t checkpoint_staging) const {
  if (!writes_) return;
  const MemoryPool& pool = rank.memory.pool;
  std::string text = "memory (MiB)";
  for (const auto& [owner, bytes] : memory_by_owner(rank))
    if (bytes > 0) text += fmt::format(" | {}: {:.2f}", owner, mib(bytes));
  const std::size_t planned = std::max(max_planned_, memory_use(setup_.plans).total());
  const std::size_t measured = pool.peak_allocated_bytes();
  text += fmt::format(" | arena used: {:.2f} of {:.2f} planned | peak: {:.2f}, planned {:.2f} | reserved: {:.2f}",
                      mib(rank.memory.arena.touched_bytes()), mib(setup_.plans.block_bytes()), mib(measured),
                      mib(planned), mib(pool.reserved_bytes()));
  if (rank.offload) text += fmt::format(" | host, activations: {:.2f}", mib(rank.offload->host.block_bytes()));
  if (checkpoint_staging > 0) text += fmt::format(" | host, checkpoint staging: {:.2f}", mib(checkpoint_staging));
  const std::size_t resident = resident_bytes();
  if (setup_.options.device == DeviceType::kCpu) {
    text += fmt::format(" | process: {:.2f}, of it programs, host copies and data: {:.2f}", mib(resident),
                        mib(resident - std::min(resident, measured)));
  }
  if (setup_.options.device == DeviceType::kCuda) {
    const CudaMemory device = cuda_memory();
    const std::size_t used = device.total - device.free;
    text += fmt::format(" | device: {:.2f} in use, of it contexts, kernels and libraries: {:.2f} | process: {:.2f}",
                        mib(used), mib(used - std::min(used, pool.reserved_bytes())), mib(resident));
  }
  log_info(text);
}

std::vector<std::pair<std::string, std::int64_t>> RunLog::memory_by_owner(const Rank& rank) const {
  const MemoryUse use = memory_use(setup_.plans);
  CategoryBytes persistent = rank.memory.pool.allocated_by_category();
  persistent[static_cast<std::size_t>(MemoryCategory::kActivations)] -= use.arena;
  std::vector<std::pair<std::string, std::int64_t>> owners;
  for (const auto& [owner, bytes] : bytes_by_owner(persistent, use))
    owners.emplace_back(owner, static_cast<std::int64_t>(bytes));
  if (rank.graphs) owners.emplace_back("graphs", static_cast<std::int64_t>(rank.graphs->stats().device_bytes));
  return owners;
}

}  // namespace megalith

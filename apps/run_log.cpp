#include "apps/run_log.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/banner.h"
#include "apps/host_memory.h"
#include "core/base/log.h"
#include "core/base/output_file.h"
#include "core/device/cuda_memory.h"
#include "core/optim/lr_schedule.h"

namespace megalith {

namespace {

std::optional<ExpertRoomUse> room_of(const ExpertRoom& room, const ExpertRoom& needed, std::int64_t regrows) {
  if (room.rows == 0) return std::nullopt;
  const auto share = [](std::int64_t used, std::int64_t of) {
    return static_cast<double>(used) / static_cast<double>(of);
  };
  return ExpertRoomUse{.used = std::max(share(needed.arrived, room.arrived), share(needed.rows, room.rows)),
                       .regrows = regrows};
}

std::optional<StepMetrics::Offload> offload_of(const Rank& rank, const StepPlans& plans, const StepResult& result,
                                               const std::vector<OffloadMeasured>& stages) {
  if (!rank.offload && stages.empty()) return std::nullopt;
  const OffloadSaving saving = saving_of(plans);
  const auto whole = [](double bytes) { return static_cast<std::int64_t>(bytes); };
  StepMetrics::Offload offload{
      .slots = std::ssize(plans.offload.points.slots),
      .bytes_out = result.bytes_out,
      .bytes_back = result.bytes_back,
      .host_bytes = rank.offload ? whole(static_cast<double>(rank.offload->host.block_bytes())) : 0,
      .saving_bytes = whole(saving.theory),
      .saved_bytes = whole(saving.realised)};
  if (!stages.empty() && stages[0].driver_saving >= 0) offload.saved_driver_bytes = whole(stages[0].driver_saving);
  for (const OffloadMeasured& stage : stages) {
    offload.stages.push_back({.slots = stage.slots,
                              .bytes_out = stage.bytes_out,
                              .bytes_back = stage.bytes_back,
                              .copy_out_ms = 1e3 * stage.times.out,
                              .copy_back_ms = 1e3 * stage.times.back,
                              .wait_out_ms = 1e3 * stage.times.waited_out,
                              .wait_back_ms = 1e3 * stage.times.waited_back,
                              .step_ms = 1e3 * stage.step_seconds});
  }
  return offload;
}

void tell(const std::vector<OffloadMeasured>& stages, std::int64_t iteration) {
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const std::string whose = stages.size() > 1 ? fmt::format(" of stage {}", stage) : "";
    log_info(fmt::format("offload{} in step {} | {}", whose, iteration, said_measured(stages[stage])));
  }
}

}  // namespace

RunLog::RunLog(const RunSetup& setup, int rank, int world) : setup_(setup), world_(world), writes_(rank == 0) {}

void RunLog::open(const TrainState& state) {
  if (!writes_) return;
  const Options& options = setup_.options;
  const LoggingOptions& logging = options.logging;
  log_ = std::make_unique<StepLog>(
      logging, StepLog::Run{.ranks = world_, .peak_tflops = peak_tflops_of(options, device_name(options))});
  if (!logging.trace.empty()) const OutputFile probe(logging.trace, "trace");  // a wrong path is told now
  if (!logging.metrics_jsonl.empty())
    metrics_ = std::make_unique<MetricsLog>(logging.metrics_jsonl, options, state.step);
  if (logging.tensorboard_dir.empty()) return;
  // An evaluation alone does not take the place of steps.
  const TensorBoardStart start{.iteration = state.step, .consumed_samples = state.consumed_samples};
  tensorboard_ = std::make_unique<TensorBoardLog>(
      logging.tensorboard_dir, options.train.skip_train ? std::nullopt : std::optional(start), logging.log_interval);
}

void RunLog::step(const Rank& rank, const StepResult& result, const StepFacts& facts) {
  if (!writes_) return;
  const TrainingOptions& train = setup_.options.train;
  const double tokens = static_cast<double>(setup_.config.step_tokens());
  const std::optional<double>& stall = facts.checkpoint_stall;
  const StepMetrics metrics{
      .iteration = result.iteration,
      .train_iters = train.train_iters,
      .consumed_samples = facts.consumed_samples,
      .global_batch_size = train.global_batch_size,
      .lm_loss = result.loss,
      .load_balancing_loss = result.load_balancing_loss,
      .z_loss = result.router_z_loss,
      .grad_norm = result.grad_norm,
      .learning_rate = learning_rate(train.schedule, result.iteration - 1),
      .tokens_per_second = tokens / result.seconds,
      .tflops_per_device = flops_per_token(setup_.options.model) * tokens / result.seconds / world_ * 1e-12,
      .step_ms = result.seconds * 1e3,
      .enqueue_ms = result.enqueue_seconds * 1e3,
      .memory_peak_bytes = static_cast<std::int64_t>(rank.memory.pool.peak_allocated_bytes()),
      .validation_loss = facts.validation_loss,
      .skipped = result.skipped,
      .skipped_steps = facts.skipped_steps,
      .memory_bytes = memory_by_owner(rank),
      .checkpoint_stall_ms = stall ? std::optional(*stall * 1e3) : std::nullopt,
      .experts = result.expert_loads,
      .expert_room = room_of(setup_.plans.room, result.room_needed, facts.regrows),
      .offload = offload_of(rank, setup_.plans, result, facts.offload)};
  if (metrics_) metrics_->write(metrics);
  if (tensorboard_) tensorboard_->write(metrics);
  log_->step(metrics);
  tell(facts.offload, result.iteration);
}

void RunLog::evaluation(const TrainState& state, double loss, bool alone) {
  if (!writes_) return;
  log_->evaluation("validation", state.step, loss);
  if (!alone) return;
  const EvaluationMetrics metrics{
      .iteration = state.step, .consumed_samples = state.consumed_samples, .validation_loss = loss};
  if (metrics_) metrics_->write(metrics);
  if (tensorboard_) tensorboard_->write(metrics);
}

void RunLog::graphs(const GraphedRunner& graphs) const {
  if (!writes_) return;
  const GraphedRunner::Stats& stats = graphs.stats();
  log_info(fmt::format("graphs | captured: {} of {} ops, {} nodes | memory: {:.2f} MiB | capture: {:.2f} s",
                       stats.graphs, stats.ops, stats.nodes, static_cast<double>(stats.device_bytes) / (1 << 20),
                       stats.capture_seconds));
}

void RunLog::memory(const Rank& rank, std::size_t checkpoint_staging) const {
  if (!writes_) return;
  const MemoryPool& pool = rank.memory.pool;
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::string text = "memory (MiB)";
  for (const auto& [owner, bytes] : memory_by_owner(rank))
    if (bytes > 0) text += fmt::format(" | {}: {:.2f}", owner, mib(static_cast<std::size_t>(bytes)));
  const std::size_t planned = memory_use(setup_.plans).total();
  const std::size_t measured = pool.peak_allocated_bytes();
  text += fmt::format(" | arena used: {:.2f} of {:.2f} planned | peak: {:.2f}, planned {:.2f} | reserved: {:.2f}",
                      mib(rank.memory.arena.touched_bytes()), mib(setup_.plans.block_bytes()), mib(measured),
                      mib(planned), mib(pool.reserved_bytes()));
  if (rank.offload) text += fmt::format(" | host, activations: {:.2f}", mib(rank.offload->host.block_bytes()));
  if (checkpoint_staging > 0) text += fmt::format(" | host, checkpoint staging: {:.2f}", mib(checkpoint_staging));
  const std::size_t resident = resident_bytes();
  if (setup_.options.train.device == DeviceType::kCpu) {
    text += fmt::format(" | process: {:.2f}, of it programs, host copies and data: {:.2f}", mib(resident),
                        mib(resident - std::min(resident, measured)));
  }
  if (setup_.options.train.device == DeviceType::kCuda) {
    const CudaMemory device = cuda_memory();
    const std::size_t used = device.total - device.free;
    text += fmt::format(" | device: {:.2f} in use, of it contexts, kernels and libraries: {:.2f} | process: {:.2f}",
                        mib(used), mib(used - std::min(used, pool.reserved_bytes())), mib(resident));
  }
  log_info(text);
}

std::vector<std::pair<std::string, std::int64_t>> RunLog::memory_by_owner(const Rank& rank) const {
  const MemoryUse use = memory_use(setup_.plans);
  std::vector<std::pair<std::string, std::int64_t>> owners;
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    std::size_t bytes = rank.memory.pool.allocated_by_category()[static_cast<std::size_t>(c)];
    if (category == MemoryCategory::kActivations) bytes -= use.arena;
    if (bytes > 0) owners.emplace_back(name_of(category), static_cast<std::int64_t>(bytes));
  }
  std::size_t kept = 0;
  for (const auto& [kind, bytes] : use.activations) {
    owners.emplace_back("activations " + kind, static_cast<std::int64_t>(bytes));
    kept += bytes;
  }
  owners.emplace_back("step temporaries", static_cast<std::int64_t>(use.arena - kept));
  if (rank.graphs) owners.emplace_back("graphs", static_cast<std::int64_t>(rank.graphs->stats().device_bytes));
  return owners;
}

}  // namespace megalith

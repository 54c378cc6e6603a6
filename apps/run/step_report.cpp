// Of a step: what it reports when it has ended.
#include "apps/run/step.h"
#include "core/device/copy.h"
#include "core/device/cuda_memory.h"

namespace megalith {

namespace {

std::optional<float> mean_of(const std::vector<ExpertLoad>& loads, std::optional<float> ExpertLoad::*loss) {
  if (loads.empty() || !(loads.front().*loss)) return std::nullopt;
  double sum = 0;
  for (const ExpertLoad& load : loads) sum += static_cast<double>((load.*loss).value_or(0));
  return static_cast<float>(sum / static_cast<double>(loads.size()));
}

}  // namespace

ReportSizes Step::report_sizes(const Rank& rank) {
  const Tensor& counts = rank.step.counts;
  return {.sums = static_cast<std::size_t>(rank.step.sums.numel()),
          .counts = counts ? static_cast<std::size_t>(counts.numel()) : 0};
}

// What the driver gave is the block, rounded up; anything else is others' doing.
void Step::use_arena(const ArenaPlan& plan) {
  constexpr std::size_t kRounding = std::size_t{4} << 20;
  Arena& arena = rank_.memory.arena;
  if (rank_.streams.compute.device() != DeviceType::kCuda || arena.block_bytes() >= plan.peak_bytes)
    return arena.use(plan);
  const std::size_t free = cuda_memory().free;
  arena.use(plan);
  const std::size_t left = cuda_memory().free, taken = free - std::min(free, left), block = arena.block_bytes();
  driver_bytes_ = taken >= block && taken <= block + kRounding ? std::optional(taken) : std::nullopt;
}

void Step::begin_copies(bool graphs) {
  if (!rank_.offload) return;
  StagedStep& step = staging_.last();
  step.times_copies = mode_ == Mode::kTrain && times_copies_ && times_copies_(step.iteration);
  rank_.offload->transfer.begin(graphs, step.times_copies);
}

void Step::end_copies(const ActivationTransfer::Stats& before, StagedStep& step) {
  if (!rank_.offload) return;
  const ActivationTransfer::Stats& now = rank_.offload->transfer.stats();
  step.bytes_out = now.bytes_out - now.bounded_out - (before.bytes_out - before.bounded_out);
  step.bytes_back = now.bytes_back - now.bounded_back - (before.bytes_back - before.bounded_back);
  // The compute stream has waited for all copies.
  if (const Tensor& moved = rank_.step.moved_bytes)
    copy_to_host(rank_.streams.compute, step.moved_bytes, moved.data, moved.bytes());
}

StepResult Step::read_result() {
  require(pending_ > 0, "no step is pending");
  StagedStep& step = staging_.ago(pending_ - 1);
  const StagedStep& before = staging_.ago(pending_);
  --pending_;
  Stream& compute = rank_.streams.compute;
  compute.synchronize_host(step.reported);
  Access access("read the step's result");
  access.add(step.report, sizeof(StepParameters), false);
  const ReportSizes sizes = report_sizes(rank_);
  access.add(step.sums, sizes.sums * sizeof(float), false);
  access.add(step.counts, sizes.counts * sizeof(std::int32_t), false);
  access.add(step.room_needed, 2 * sizeof(std::int32_t), false);
  access.add(step.moved_bytes, 2 * sizeof(std::int64_t), false);
  compute.announce_host(access);
  StepResult result{
      .iteration = step.iteration,
      .loss = step.report->loss / static_cast<float>(rank_.config.step_tokens()),
      .grad_norm = step.report->grad_norm,
      .expert_loads = expert_loads(rank_.options.model, rank_.config.step_tokens(), {step.sums, sizes.sums},
                                   {step.counts, sizes.counts}, rank_.config.mesh.ep),
      .room_needed = {.arrived = step.room_needed[0], .rows = step.room_needed[1]},
      .lacks_room = step.report->skip == kSkipNoRoom,
      .skipped = step.report->skip == kSkipNotFinite,
      .adam_count = step.report->adam_count,
      .bytes_out = step.bytes_out + step.moved_bytes[0],
      .bytes_back = step.bytes_back + step.moved_bytes[1],
      .enqueue_seconds = step.enqueue_seconds,
      .seconds = seconds_between(step.follows ? before.reported : step.begun, step.reported)};
  result.load_balancing_loss = mean_of(result.expert_loads, &ExpertLoad::load_balancing_loss);
  if (step.times_copies) result.copy_times = rank_.offload->transfer.times();
  result.router_z_loss = mean_of(result.expert_loads, &ExpertLoad::z_loss);
  return result;
}

}  // namespace megalith

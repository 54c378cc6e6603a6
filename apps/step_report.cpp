// Of a step: what it reports when it has ended.
#include "apps/step.h"

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
  compute.announce_host(access);
  StepResult result{.iteration = step.iteration,
                    .loss = step.report->loss / static_cast<float>(rank_.config.step_tokens()),
                    .grad_norm = step.report->grad_norm,
                    .expert_loads = expert_loads(rank_.options.model, rank_.config.step_tokens(),
                                                 {step.sums, sizes.sums}, {step.counts, sizes.counts}),
                    .room_needed = {.arrived = step.room_needed[0], .rows = step.room_needed[1]},
                    .lacks_room = step.report->skip == kSkipNoRoom,
                    .skipped = step.report->skip == kSkipNotFinite,
                    .adam_count = step.report->adam_count,
                    .bytes_out = step.bytes_out,
                    .bytes_back = step.bytes_back,
                    .enqueue_seconds = step.enqueue_seconds,
                    .seconds = seconds_between(step.follows ? before.reported : step.begun, step.reported)};
  result.load_balancing_loss = mean_of(result.expert_loads, &ExpertLoad::load_balancing_loss);
  result.router_z_loss = mean_of(result.expert_loads, &ExpertLoad::z_loss);
  return result;
}

}  // namespace megalith

#include "apps/metrics/tensorboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "apps/metrics/metrics_schema.h"
#include "core/reports/event_file.h"

namespace megalith {

namespace {

constexpr const char* kTensorboardFlag = "--tensorboard-dir";
constexpr const char* kTensorboardScope = "tensorboard";

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

struct TensorBoardLog::Records {
  std::int64_t iteration;
  std::int64_t consumed_samples;
  double time = now();
  std::string by_step{};
  std::string by_samples{};

  void add(std::string_view tag, double value) {
    by_step += tensorboard_record(tensorboard_scalar(time, iteration, tag, static_cast<float>(value)));
  }
  void add_both(std::string_view tag, double value) {
    add(tag, value);
    by_samples += tensorboard_record(
        tensorboard_scalar(time, consumed_samples, fmt::format("{} vs samples", tag), static_cast<float>(value)));
  }
  template <class Owner>
  void add(const Metric<Owner>& row, const std::string& name, std::optional<double> value) {
    if (!value) return;
    const double shown = row.traits.tag.scale * *value;
    row.traits.tag.by_samples ? add_both(name, shown) : add(name, shown);
  }
  void add_experts(const Tag& tag, const std::vector<ExpertLoad>& loads) {
    for (const ExpertLoad& load : loads)
      for (const Metric<ExpertLoad>* const row : in_order(expert_schema(), &MetricTraits::tag))
        add(*row, fmt::format("{}{}_layer_{}", tag.name, row->traits.tag.name, load.layer), number_of(*row, load));
  }
  // Adds sums, and maxima over the stages.
  void add_offload(const Tag& tag, const OffloadMetrics& offload) {
    for (const Metric<OffloadStats>* const row : in_order(offload_schema(), &MetricTraits::tag)) {
      std::optional<double> value;
      if ((row->traits.parts & kOfSums) != 0) value = number_of(*row, offload.sums);
      for (const OffloadStats& stage : offload.stages)
        if ((row->traits.parts & kOfSums) == 0) value = std::max(value.value_or(0), *number_of(*row, stage));
      add(*row, fmt::format("{}{}", tag.name, row->traits.tag.name), value);
    }
  }
  void add_step(const StepMetrics& metrics, MetricPart part, bool has_details, bool was_timed) {
    for (const Metric<StepMetrics>* const row : in_order(step_schema(), &MetricTraits::tag)) {
      const Tag& tag = row->traits.tag;
      if ((row->traits.parts & part) == 0) continue;
      if (row->key == "offload" && metrics.offload && (has_details || was_timed)) add_offload(tag, *metrics.offload);
      if (tag.is_detail && !has_details) continue;
      if (row->key == "experts") add_experts(tag, metrics.experts);
      add(*row, std::string(tag.name), number_of(*row, metrics));
    }
  }
};

TensorBoardLog::TensorBoardLog(const std::string& folder, std::optional<RunProgress> start,
                               TensorBoardIntervals intervals)
    : steps_(begin_event_file(folder, now(), start ? std::optional(start->steps + 1) : std::nullopt, kTensorboardFlag),
             kTensorboardFlag, kTensorboardScope),
      samples_(begin_event_file(folder + "/by-samples", now(), start ? std::optional(start->samples + 1) : std::nullopt,
                                kTensorboardFlag),
               kTensorboardFlag, kTensorboardScope),
      intervals_(intervals) {}

void TensorBoardLog::write(const StepMetrics& metrics) {
  const bool is_end = std::exchange(is_first_, false) || metrics.iteration == metrics.train_iters;
  const bool was_timed = metrics.offload && !metrics.offload->stages.empty();
  if (!is_end && !was_timed && !metrics.validation_loss && metrics.iteration % intervals_.entries != 0) return;
  Records records{.iteration = metrics.iteration, .consumed_samples = metrics.consumed_samples};
  records.add_step(metrics, kOfStep, is_end || metrics.iteration % intervals_.details == 0, was_timed);
  steps_.write(records.by_step);
  samples_.write(records.by_samples);
}

void TensorBoardLog::write(const EvaluationMetrics& metrics) {
  Records records{.iteration = metrics.iteration, .consumed_samples = metrics.consumed_samples};
  if (metrics.split != "validation") return;
  records.add_step({.validation_loss = metrics.loss}, kOfEvaluation, false, false);
  steps_.write(records.by_step);
  samples_.write(records.by_samples);
}

}  // namespace megalith

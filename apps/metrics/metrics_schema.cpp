#include "apps/metrics/metrics_schema.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "core/base/text/units.h"

namespace megalith {

// Number with E notation. fmt prints NaN in capitals with E; the rest of the program prints it in lowercase.
std::string scientific(double value) {
  return std::isfinite(value) ? fmt::format("{:.6E}", value) : fmt::format("{}", std::abs(value));
}
std::string token_rate(double tokens_per_second) {
  return fmt::format("{:.{}f}", tokens_per_second, tokens_per_second < 100 ? 1 : 0);
}

namespace {

constexpr const char* kWithBalance = "with a load-balancing loss";
constexpr const char* kWithZLoss = "with --moe-z-loss-coeff";
constexpr const char* kWithExpertRanks = "with --expert-model-parallel-size above 1";
constexpr const char* kTimed = "with --timing-log-level in steps with a log line";
constexpr const char* kTimedParts = "with --timing-log-level 2 in steps with a log line";
constexpr const char* kMasked = "with packs or masks of documents";
constexpr const char* kValidated = "after a validation";
constexpr const char* kByDriver = "if the free memory of the GPUs shows it and copies were timed";

std::string count(double value) { return fmt::format("{:.0f}", value); }
std::string above_zero(double value) { return value > 0 ? count(value) : ""; }
std::string short_rate(double value) { return fmt::format("{:.2e}", value); }
std::string short_loss(double value) {
  return std::abs(value) < 1e4 ? fmt::format("{:.4f}", value) : scientific(value);  // NaN: scientific
}
std::string one_digit(double value) { return fmt::format("{:.1f}", value); }
std::string three_digits(double value) { return fmt::format("{:.3f}", std::abs(value)); }  // no -nan
// TFLOP/s with three digits below 10, since a CPU has less than one.
std::string tflops(double value) { return fmt::format("{:.{}f}", value, value < 10 ? 3 : 1); }

using Number = std::optional<double>;

template <class Get>
Number sum_of_layers(const StepMetrics& step, const Get& get) {
  if (step.experts.empty()) return std::nullopt;
  return std::accumulate(step.experts.begin(), step.experts.end(), 0.0,
                         [&](double sum, const ExpertLoad& load) { return sum + static_cast<double>(get(load)); });
}
Number dropped_rows(const StepMetrics& step) {
  return sum_of_layers(step, [](const ExpertLoad& load) { return load.dropped; });
}
Number rows_sent(const StepMetrics& step) {
  if (step.experts.empty() || !step.experts.front().rows_sent) return std::nullopt;
  return sum_of_layers(step, [](const ExpertLoad& load) { return load.rows_sent.value_or(0); });
}
Number least_entropy(const StepMetrics& step) {
  if (step.experts.empty()) return std::nullopt;
  return std::ranges::min_element(step.experts, {}, &ExpertLoad::entropy)->entropy;
}
Number validation_perplexity(const StepMetrics& step) {
  return step.validation_loss ? Number(std::exp(*step.validation_loss)) : std::nullopt;
}
Number is_nan(const StepMetrics& step) { return std::isfinite(step.lm_loss) ? 0 : 1; }
Number gib_moved(const StepMetrics& step) {
  if (!step.offload) return std::nullopt;
  return gib(step.offload->sums.bytes_out + step.offload->sums.bytes_back);
}
template <class Get>
Number max_ms(const StepMetrics& step, const Get& seconds) {
  if (!step.offload || step.offload->stages.empty()) return std::nullopt;
  double most = 0;
  for (const OffloadStats& stage : step.offload->stages) most = std::max(most, 1e3 * std::invoke(seconds, stage));
  return most;
}
Number max_waits(const StepMetrics& step) { return max_ms(step, &OffloadStats::waits); }
Number max_out(const StepMetrics& step) { return max_ms(step, &OffloadStats::copy_out); }
Number max_back(const StepMetrics& step) { return max_ms(step, &OffloadStats::copy_back); }
Number saved_of_possible(const OffloadStats& stats) {
  return stats.saving_bytes > 0 ? Number(stats.ratio()) : std::nullopt;
}

constexpr auto kExperts = ChartSection::kExperts;
constexpr auto kOffload = ChartSection::kOffload;
using Step = StepMetrics;

using StepRow = Metric<StepMetrics>;
using LayerRow = Metric<ExpertLoad>;
using OffloadRow = Metric<OffloadStats>;

constexpr StepRow kStepRows[] = {
    StepRow("iteration", &Step::iteration, "steps", "completed steps, including this step"),
    StepRow("consumed_samples", &Step::consumed_samples, "samples", "samples of all steps so far",
            {.log = {"consumed samples", 1, count}}),
    StepRow("skipped_samples", &Step::skipped_samples, "samples", "samples of steps of --iterations-to-skip so far",
            {.when = "after such a step",
             .tag = {.name = "skipped-train-samples", .place = 1},
             .log = {"skipped samples", 2, count}}),
    StepRow("global_batch_size", &Step::global_batch_size, "samples", "samples of the step",
            {.tag = {"batch-size", 3, true}, .log = {"global batch size", 6, count}}),
    StepRow("lm_loss", &Step::lm_loss, "nats per token", "mean over the global batch; null if not finite",
            {.exact = true,
             .tag = {"lm loss", 4, true},
             .log = {"lm loss", 7, scientific, Over::kMean},
             .brief = {"loss {}", 1, short_loss},
             .chart = {"Loss"}}),
    StepRow("grad_norm", &Step::grad_norm, "global L2, before clipping", "norm of all gradients; null if not finite",
            {.exact = true,
             .tag = {"grad-norm", 7, true},
             .log = {"grad norm", 10, three_digits},
             .brief = {"norm {}", 2, three_digits},
             .chart = {"Gradient norm"}}),
    StepRow("num_zeros", &Step::num_zeros, "elements", "elements of the gradients that are 0",
            {.when = "with --log-num-zeros-in-grad",
             .tag = {"num-zeros", 8, true},
             .log = {"num zeros", 11, count},
             .chart = {"Zeros in gradients"}}),
    StepRow("params_norm", &Step::params_norm, "global L2, after the step", "norm of all main parameters",
            {.when = "with --log-params-norm",
             .tag = {"params-norm", 9, true},
             .log = {"params norm", 12, three_digits},
             .chart = {"Parameter norm"}}),
    StepRow("learning_rate", &Step::learning_rate, "", "learning rate of the step",
            {.tag = {"learning-rate", 2, true},
             .log = {"learning rate", 5, scientific},
             .brief = {"lr {}", 3, short_rate},
             .chart = {"Learning rate"}}),
    StepRow("tokens_per_second", &Step::tokens_per_second, "tokens per second, all ranks", "throughput",
            {.log = {"tokens/s", 17, token_rate, Over::kMeanOverTime}, .chart = {"Throughput"}}),
    StepRow("tflops_per_device", &Step::tflops_per_device, "TFLOP/s", "model FLOP/s per device, without recompute",
            {.tag = {"throughput", 11}, .log = {"throughput per GPU (TFLOP/s/GPU)", 4, tflops, Over::kMeanOverTime}}),
    StepRow("step_ms", &Step::step_ms, "milliseconds", "time of the step",
            {.tag = {.name = "iteration-time", .place = 10, .by_samples = true, .scale = 1e-3},
             .log = {"elapsed time per iteration (ms)", 3, one_digit, Over::kMean},
             .brief = {"{} ms", 4, one_digit},
             .chart = {"Step time"}}),
    StepRow("enqueue_ms", &Step::enqueue_ms, "milliseconds",
            "host time of the step; on a GPU the host waits beyond 1,024 launches"),
    StepRow("memory_peak_bytes", &Step::memory_peak_bytes, "bytes", "peak device memory so far, of rank 0",
            {.tag = {"mem-max-allocated-bytes", 12}}),
    StepRow("skipped", &Step::skipped, "true or false", "loss or gradients were not finite, and nothing was updated",
            {.log = {"number of skipped iterations", 13, count, Over::kSum}, .brief = {"skipped {}", 5, above_zero}}),
    StepRow("skipped_steps", &Step::skipped_steps, "steps", "skipped steps of the run"),
    StepRow("load_balancing_loss", &Step::load_balancing_loss, "mean over layers, 1: balanced",
            "load-balancing loss of the routers, without its coefficient",
            {.when = kWithBalance,
             .tag = {"load_balancing_loss", 5, true},
             .log = {"load_balancing_loss", 8, scientific},
             .chart = {"Load-balancing loss", kExperts}}),
    StepRow("z_loss", &Step::z_loss, "mean over layers", "z-loss of the routers, without its coefficient",
            {.when = kWithZLoss,
             .tag = {"z_loss", 6, true},
             .log = {"z_loss", 9, scientific},
             .chart = {"Router z-loss", kExperts}}),
    StepRow("trained_tokens", &Step::trained_tokens, "tokens", "predictions of the step whose loss counts",
            {.when = kMasked, .tag = {.name = "trained-tokens", .place = 19}}),
    StepRow("fill", &Step::fill, "1: no padding", "tokens over rows of the step", {.when = kMasked}),
    StepRow("imbalance", &Step::imbalance, "1: even",
            "largest over mean sum of the documents' squared lengths, over the data-parallel ranks", {.when = kMasked}),
    StepRow("validation_loss", &Step::validation_loss, "nats per token", "validation loss after the step",
            {.when = kValidated, .parts = kOfAll, .tag = {"lm loss validation", 17, true}}),
    StepRow("", &validation_perplexity, "", "exp of the validation loss",
            {.when = kValidated, .parts = kOfAll, .tag = {"lm loss validation ppl", 18, true}}),
    StepRow("checkpoint_stall_ms", &Step::checkpoint_stall_ms, "milliseconds",
            "time by which the previous save delayed the run", {.when = "after a save"}),
    StepRow("experts", &Step::experts, "object", "load of experts: arrays with one entry per MoE layer",
            {.when = "with experts",
             .tag = {.name = "moe/", .place = 13, .is_detail = true},
             .log = {"expert load", 15},
             .brief = {"load max/mean {}", 6}}),
    StepRow("expert_room_used", &Step::expert_room_used, "maximum over ranks, 1: all",
            "used fraction of the capacity for rows of experts, maximum over layers and microbatches",
            {.when = kWithExpertRanks,
             .tag = {.name = "moe/room_used", .place = 14, .is_detail = true},
             .chart = {"Capacity used by rows of experts", kExperts}}),
    StepRow("expert_room_regrows", &Step::expert_room_regrows, "so far",
            "steps and evaluations of this process that were rerun with more capacity",
            {.when = kWithExpertRanks,
             .tag = {.name = "moe/room_regrows", .place = 15, .is_detail = true},
             .chart = {"Reruns with more capacity", kExperts}}),
    StepRow("compute_ms", &Step::compute_ms, "milliseconds, mean over ranks",
            "time of the step other than the next three",
            {.when = kTimed,
             .tag = {.name = "compute-time", .place = 20, .scale = 1e-3},
             .log = {"compute (ms)", 18, one_digit}}),
    StepRow("communication_ms", &Step::communication_ms, "milliseconds, mean over ranks",
            "waits of the compute stream for other ranks, outside of layers and graphs",
            {.when = kTimed,
             .tag = {.name = "exposed-communication-time", .place = 21, .scale = 1e-3},
             .log = {"exposed communication (ms)", 19, one_digit}}),
    StepRow("copies_ms", &Step::copies_ms, "milliseconds, mean over ranks",
            "waits of the compute stream for copies of offloaded activations",
            {.when = kTimed,
             .tag = {.name = "exposed-copies-time", .place = 22, .scale = 1e-3},
             .log = {"exposed copies (ms)", 20, one_digit}}),
    StepRow("host_ms", &Step::host_ms, "milliseconds, mean over ranks", "time between the previous step and this one",
            {.when = kTimed,
             .tag = {.name = "host-time", .place = 23, .scale = 1e-3},
             .log = {"host (ms)", 21, one_digit}}),
    StepRow("forward_ms", &Step::forward_ms, "milliseconds, mean over ranks", "forward passes, a part of `compute_ms`",
            {.when = kTimedParts,
             .tag = {.name = "forward-time", .place = 24, .scale = 1e-3},
             .log = {"forward (ms)", 22, one_digit}}),
    StepRow("backward_ms", &Step::backward_ms, "milliseconds, mean over ranks",
            "backward passes, a part of `compute_ms`",
            {.when = kTimedParts,
             .tag = {.name = "backward-time", .place = 25, .scale = 1e-3},
             .log = {"backward (ms)", 23, one_digit}}),
    StepRow("optimizer_ms", &Step::optimizer_ms, "milliseconds, mean over ranks",
            "update of the parameters, a part of `compute_ms`",
            {.when = kTimedParts,
             .tag = {.name = "optimizer-time", .place = 26, .scale = 1e-3},
             .log = {"optimizer (ms)", 24, one_digit}}),
    StepRow("offload", &Step::offload, "object", "offloaded activations: sums over all ranks, and `stages`",
            {.when = "with offloaded activations", .tag = {.name = "offload/", .place = 16, .is_detail = true}}),
    StepRow("memory_bytes", &Step::memory_bytes, "object", "device memory by owner, of rank 0"),
    StepRow("", &is_nan, "steps", "steps whose loss is not finite",
            {.log = {"number of nan iterations", 14, count, Over::kSum}}),
    StepRow("", &least_entropy, "entropy of the load, 1: balanced", "minimum `entropy` over MoE layers",
            {.when = "with experts", .chart = {"Entropy of the least balanced layer", kExperts}}),
    StepRow("", &dropped_rows, "per step, all layers", "sum of `dropped` over layers",
            {.when = "with experts",
             .log = {"dropped rows", 16, count},
             .brief = {"dropped {}", 7, above_zero},
             .chart = {"Dropped rows", kExperts}}),
    StepRow("", &rows_sent, "per step, all layers", "sum of `rows_sent` over layers",
            {.when = kWithExpertRanks, .chart = {"Rows sent to other ranks", kExperts}}),
    StepRow("", &gib_moved, "GiB per step, all ranks", "sum of `bytes_out` and `bytes_back`",
            {.when = "with offloaded activations", .chart = {"Moved to the host and back", kOffload}}),
    StepRow("", &max_waits, "milliseconds per step, worst stage", "maximum `wait_out_ms` + `wait_back_ms` over stages",
            {.when = "if copies were timed", .chart = {"Compute waits for copies", kOffload}}),
    StepRow("", &max_out, "milliseconds per step, worst stage", "maximum `copy_out_ms` over stages",
            {.when = "if copies were timed", .chart = {"Copies to the host", kOffload}}),
    StepRow("", &max_back, "milliseconds per step, worst stage", "maximum `copy_back_ms` over stages",
            {.when = "if copies were timed", .chart = {"Copies back", kOffload}}),
};

constexpr LayerRow kExpertRows[] = {
    LayerRow("layer", &ExpertLoad::layer, "", "index of the layer in the model"),
    LayerRow("min", &ExpertLoad::min, "rows", "rows of the least loaded expert", {.tag = {"load_min"}}),
    LayerRow("max", &ExpertLoad::max, "rows", "rows of the most loaded expert", {.tag = {"load_max"}}),
    LayerRow("mean", &ExpertLoad::mean, "rows", "mean over the experts", {.tag = {"load_mean"}}),
    LayerRow("entropy", &ExpertLoad::entropy, "1: balanced",
             "entropy of the experts' shares of the rows, relative to equal shares", {.tag = {"load_entropy"}}),
    LayerRow("dropped", &ExpertLoad::dropped, "rows", "choices without a row", {.tag = {"dropped_rows"}}),
    LayerRow("rank_max_over_mean", &ExpertLoad::rank_max_over_mean, "",
             "rows of the most loaded rank over the mean of all ranks",
             {.when = kWithExpertRanks, .tag = {"load_rank_max_over_mean"}}),
    LayerRow("rows_sent", &ExpertLoad::rows_sent, "rows", "tokens sent to other ranks, counted once per rank",
             {.when = kWithExpertRanks, .tag = {"rows_sent"}}),
    LayerRow("load_balancing_loss", &ExpertLoad::load_balancing_loss, "1: balanced",
             "load-balancing loss, without its coefficient", {.when = kWithBalance, .tag = {"load_balancing_loss"}}),
    LayerRow("z_loss", &ExpertLoad::z_loss, "", "z-loss, without its coefficient",
             {.when = kWithZLoss, .tag = {"z_loss"}}),
};

constexpr OffloadRow kOffloadRows[] = {
    OffloadRow("slots", &OffloadStats::slots, "", "offloaded slots per microbatch"),
    OffloadRow("bytes_out", &OffloadStats::bytes_out, "bytes", "bytes copied to the host in the step",
               {.tag = {"bytes_out", 1}}),
    OffloadRow("bytes_back", &OffloadStats::bytes_back, "bytes", "bytes copied back in the step",
               {.tag = {"bytes_back", 2}}),
    OffloadRow("host_bytes", &OffloadStats::host_bytes, "bytes", "pinned memory of hosts", {.parts = kOfSums}),
    OffloadRow("copy_out_ms", &OffloadStats::copy_out, "milliseconds", "time of copies to the host",
               {.parts = kOfStage, .scale = 1e3, .tag = {.name = "copy_out_seconds", .place = 5, .scale = 1e-3}}),
    OffloadRow("copy_back_ms", &OffloadStats::copy_back, "milliseconds", "time of copies back",
               {.parts = kOfStage, .scale = 1e3, .tag = {.name = "copy_back_seconds", .place = 6, .scale = 1e-3}}),
    OffloadRow("wait_out_ms", &OffloadStats::wait_out, "milliseconds",
               "waits of the compute stream for copies to the host",
               {.parts = kOfStage, .scale = 1e3, .tag = {.name = "wait_out_seconds", .place = 7, .scale = 1e-3}}),
    OffloadRow("wait_back_ms", &OffloadStats::wait_back, "milliseconds", "waits of the compute stream for copies back",
               {.parts = kOfStage, .scale = 1e3, .tag = {.name = "wait_back_seconds", .place = 8, .scale = 1e-3}}),
    OffloadRow("step_ms", &OffloadStats::step, "milliseconds", "time of the step", {.parts = kOfStage, .scale = 1e3}),
    OffloadRow("saving_bytes", &OffloadStats::saving_bytes, "bytes", "device memory that offload saves at peak memory"),
    OffloadRow("saved_bytes", &OffloadStats::saved_bytes, "bytes", "device memory that the planned blocks save",
               {.tag = {"saved_bytes", 3}}),
    OffloadRow("", &saved_of_possible, "", "`saved_bytes` over `saving_bytes`", {.tag = {"saved_of_possible", 4}}),
    OffloadRow("saved_driver_bytes", &OffloadStats::saved_driver_bytes, "bytes",
               "saved device memory as the driver shows it", {.when = kByDriver}),
};

}  // namespace

std::span<const Metric<StepMetrics>> step_schema() { return kStepRows; }
std::span<const Metric<ExpertLoad>> expert_schema() { return kExpertRows; }
std::span<const Metric<OffloadStats>> offload_schema() { return kOffloadRows; }

}  // namespace megalith

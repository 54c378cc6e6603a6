#include "core/optim/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "core/base/error.h"

namespace megalith {

namespace {

// Lengths of a schedule's phases in steps or samples.
struct Phases {
  double warmup, decay, wsd;
};

Phases phases_of(const LrSchedule& schedule) {
  const bool by_samples = schedule.by_samples();
  const auto decay = static_cast<double>(by_samples ? schedule.lr_decay_samples : schedule.lr_decay_iters);
  const auto warmup = static_cast<double>(by_samples ? schedule.lr_warmup_samples : schedule.lr_warmup_iters);
  return {.warmup = schedule.lr_warmup_fraction > 0.0 ? schedule.lr_warmup_fraction * decay : warmup,
          .decay = decay,
          .wsd = static_cast<double>(by_samples ? schedule.lr_wsd_decay_samples : schedule.lr_wsd_decay_iters)};
}

// Returns the progress in the unit of the phases.
double done_of(const LrSchedule& schedule, const RunProgress& progress) {
  const auto samples = static_cast<double>(progress.samples - progress.passed_samples);
  if (schedule.by_samples()) return samples;
  if (schedule.samples_per_step > 0) return samples / static_cast<double>(schedule.samples_per_step);
  return static_cast<double>(progress.steps - progress.passed_steps);
}

double half_cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

// Returns the fraction of lr - min_lr at `done`, which is between the warm-up and the end of the decay.
double wsd_coefficient(const LrSchedule& schedule, const Phases& phases, double done) {
  const double start = phases.decay - phases.wsd;
  if (done <= start) return 1.0;
  const double ratio = (done - start) / phases.wsd;
  switch (schedule.lr_wsd_decay_style) {
    case WsdDecayStyle::kExponential: return 2.0 * std::pow(0.5, ratio) - 1.0;
    case WsdDecayStyle::kLinear: return 1.0 - ratio;
    case WsdDecayStyle::kCosine: return half_cosine(ratio);
    case WsdDecayStyle::kMinusSqrt: return 1.0 - std::sqrt(ratio);
  }
  return 0.0;
}

// Checks the three lengths and reports them under the names of their flags.
void validate_phases(const LrSchedule& schedule) {
  const bool by_samples = schedule.by_samples();
  const char* const unit = by_samples ? "samples" : "iters";
  const auto named = [unit](const char* phase) { return fmt::format("--lr-{}-{}", phase, unit); };
  const std::string decay_flag = named("decay"), warmup_flag = named("warmup"), wsd_flag = named("wsd-decay");
  const std::int64_t decay = by_samples ? schedule.lr_decay_samples : schedule.lr_decay_iters;
  const std::int64_t warmup = by_samples ? schedule.lr_warmup_samples : schedule.lr_warmup_iters;
  const std::int64_t wsd = by_samples ? schedule.lr_wsd_decay_samples : schedule.lr_wsd_decay_iters;
  if (decay < 1) {
    refuse_usage(decay_flag, {.expected = "at least 1 step",
                              .got = fmt::format("{}", decay),
                              .remedy = "leave it out: it is then --train-iters"});
  }
  if (warmup < 0 || warmup >= decay) {
    refuse_usage(
        fmt::format("{} and {}", warmup_flag, decay_flag),
        {.expected = fmt::format("0 <= {} < {} (which is --train-{} by default)", warmup_flag, decay_flag, unit),
         .got = fmt::format("{} {} and {} {}", warmup_flag, warmup, decay_flag, decay),
         .remedy = fmt::format("lower {}", warmup_flag)});
  }
  if (!(schedule.lr_warmup_fraction >= 0.0 && schedule.lr_warmup_fraction < 1.0)) {
    refuse_usage("--lr-warmup-fraction", {.expected = "a value of at least 0 and less than 1",
                                          .got = fmt::format("{}", schedule.lr_warmup_fraction),
                                          .remedy = "such as 0.01"});
  }
  if (schedule.lr_warmup_fraction > 0.0 && warmup > 0) {
    refuse_usage(fmt::format("--lr-warmup-fraction and {}", warmup_flag),
                 {.expected = "one of them",
                  .got = fmt::format("{} and {}", schedule.lr_warmup_fraction, warmup),
                  .remedy = "remove one"});
  }
  if (schedule.lr_decay_style != LrDecayStyle::kWsd) return;
  const Phases phases = phases_of(schedule);
  if (wsd >= 1 && phases.decay - phases.wsd >= phases.warmup) return;
  refuse_usage(fmt::format("--lr-decay-style WSD and {}", wsd_flag),
               {.expected = fmt::format("{} from 1 to {} ({} less the warm-up)", wsd_flag,
                                        std::floor(phases.decay - phases.warmup), decay_flag),
                .got = fmt::format("{}", wsd),
                .remedy = "it is the length of the last phase"});
}

}  // namespace

double decoupled_learning_rate(const LrSchedule& schedule, const RunProgress& done) {
  LrSchedule decoupled = schedule;
  if (schedule.decoupled_lr > 0) decoupled.lr = schedule.decoupled_lr;
  if (schedule.decoupled_lr > 0 && schedule.decoupled_min_lr >= 0) decoupled.min_lr = schedule.decoupled_min_lr;
  return learning_rate(decoupled, done);
}

double weight_decay_scale(const LrSchedule& schedule, const RunProgress& done) {
  const WeightDecayStyle style = schedule.weight_decay_incr_style;
  const double end = schedule.end_weight_decay;
  const auto length = static_cast<double>(schedule.weight_decay_incr_length);
  const double now = done_of(schedule, done);
  if (style == WeightDecayStyle::kConstant || end == 0 || now > length) return 1;
  const double ratio = length > 0 ? now / length : 1;
  const double coefficient = style == WeightDecayStyle::kLinear ? ratio : half_cosine(1 - ratio);
  return (schedule.start_weight_decay + coefficient * (end - schedule.start_weight_decay)) / end;
}

StepRates rates_after(const LrSchedule& schedule, const RunProgress& done) {
  return {.main = static_cast<float>(learning_rate(schedule, done)),
          .decoupled = static_cast<float>(decoupled_learning_rate(schedule, done)),
          .weight_decay_scale = weight_decay_scale(schedule, done)};
}

double learning_rate(const LrSchedule& schedule, const RunProgress& progress) {
  const Phases phases = phases_of(schedule);
  const double done = done_of(schedule, progress);
  if (phases.warmup > 0.0 && done <= phases.warmup) {
    return schedule.lr_warmup_init + (schedule.lr - schedule.lr_warmup_init) * done / phases.warmup;
  }
  if (schedule.lr_decay_style == LrDecayStyle::kConstant) return schedule.lr;
  if (done > phases.decay) return schedule.min_lr;
  if (schedule.lr_decay_style == LrDecayStyle::kInverseSquareRoot) {
    const double decayed = schedule.lr * std::sqrt(std::max(phases.warmup, 1.0)) / std::sqrt(std::max(done, 1.0));
    return std::max(schedule.min_lr, decayed);
  }
  const double ratio = (done - phases.warmup) / (phases.decay - phases.warmup);
  double coefficient = 0.0;
  switch (schedule.lr_decay_style) {
    case LrDecayStyle::kLinear: coefficient = 1.0 - ratio; break;
    case LrDecayStyle::kCosine: coefficient = half_cosine(ratio); break;
    case LrDecayStyle::kWsd: coefficient = wsd_coefficient(schedule, phases, done); break;
    case LrDecayStyle::kConstant:
    case LrDecayStyle::kInverseSquareRoot: break;  // returned above
  }
  return schedule.min_lr + coefficient * (schedule.lr - schedule.min_lr);
}

void validate(const LrSchedule& schedule) {
  if (!(schedule.lr > 0.0))
    refuse_usage("--lr",
                 {.expected = "a value above 0", .got = fmt::format("{}", schedule.lr), .remedy = "such as 3e-4"});
  if (!(schedule.min_lr >= 0.0 && schedule.min_lr <= schedule.lr)) {
    refuse_usage("--min-lr and --lr", {.expected = "0 <= --min-lr <= --lr",
                                       .got = fmt::format("--min-lr {} and --lr {}", schedule.min_lr, schedule.lr),
                                       .remedy = "lower --min-lr"});
  }
  if (!(schedule.lr_warmup_init >= 0.0 && schedule.lr_warmup_init <= schedule.lr)) {
    refuse_usage("--lr-warmup-init and --lr",
                 {.expected = "0 <= --lr-warmup-init <= --lr",
                  .got = fmt::format("--lr-warmup-init {} and --lr {}", schedule.lr_warmup_init, schedule.lr),
                  .remedy = "lower --lr-warmup-init"});
  }
  if (schedule.weight_decay_incr_style == WeightDecayStyle::kConstant) {
    if (schedule.start_weight_decay == 0 && schedule.end_weight_decay == 0) return validate_phases(schedule);
    refuse_usage("--weight-decay-incr-style",
                 {.expected = "linear or cosine with --start-weight-decay and --end-weight-decay",
                  .got = "constant",
                  .remedy = "use --weight-decay for a constant value"});
  }
  if (!(schedule.end_weight_decay > 0 && schedule.start_weight_decay <= schedule.end_weight_decay)) {
    refuse_usage("--start-weight-decay and --end-weight-decay",
                 {.expected = "0 <= --start-weight-decay <= --end-weight-decay, which is above 0",
                  .got = fmt::format("{} and {}", schedule.start_weight_decay, schedule.end_weight_decay),
                  .remedy = "set both for --weight-decay-incr-style linear or cosine"});
  }
  validate_phases(schedule);
}

}  // namespace megalith

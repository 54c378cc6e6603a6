#include "core/optim/lr_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace megalith {

namespace {

double warmup_steps(const LrSchedule& schedule) {
  if (schedule.lr_warmup_fraction > 0.0) {
    return schedule.lr_warmup_fraction * static_cast<double>(schedule.lr_decay_iters);
  }
  return static_cast<double>(schedule.lr_warmup_iters);
}

double half_cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

// Share of lr - min_lr that is left, for a step in [warm-up, lr_decay_iters].
double wsd_coefficient(const LrSchedule& schedule, double step) {
  const auto length = static_cast<double>(schedule.lr_wsd_decay_iters);
  const double start = static_cast<double>(schedule.lr_decay_iters) - length;
  if (step <= start) return 1.0;
  const double ratio = (step - start) / length;
  switch (schedule.lr_wsd_decay_style) {
    case WsdDecayStyle::kExponential: return 2.0 * std::pow(0.5, ratio) - 1.0;
    case WsdDecayStyle::kLinear: return 1.0 - ratio;
    case WsdDecayStyle::kCosine: return half_cosine(ratio);
    case WsdDecayStyle::kMinusSqrt: return 1.0 - std::sqrt(ratio);
  }
  return 0.0;
}

}  // namespace

double learning_rate(const LrSchedule& schedule, std::int64_t completed_steps) {
  const double warmup = warmup_steps(schedule);
  const auto step = static_cast<double>(completed_steps);
  if (warmup > 0.0 && step <= warmup) {
    return schedule.lr_warmup_init + (schedule.lr - schedule.lr_warmup_init) * step / warmup;
  }
  if (schedule.lr_decay_style == LrDecayStyle::kConstant) return schedule.lr;
  if (completed_steps > schedule.lr_decay_iters) return schedule.min_lr;
  if (schedule.lr_decay_style == LrDecayStyle::kInverseSquareRoot) {
    const double decayed = schedule.lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(step, 1.0));
    return std::max(schedule.min_lr, decayed);
  }
  const double ratio = (step - warmup) / (static_cast<double>(schedule.lr_decay_iters) - warmup);
  double coefficient = 0.0;
  switch (schedule.lr_decay_style) {
    case LrDecayStyle::kLinear: coefficient = 1.0 - ratio; break;
    case LrDecayStyle::kCosine: coefficient = half_cosine(ratio); break;
    case LrDecayStyle::kWsd: coefficient = wsd_coefficient(schedule, step); break;
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
  if (schedule.lr_decay_iters < 1) {
    refuse_usage("--lr-decay-iters", {.expected = "at least 1 step",
                                      .got = fmt::format("{}", schedule.lr_decay_iters),
                                      .remedy = "leave it out: it is then --train-iters"});
  }
  if (schedule.lr_warmup_iters < 0 || schedule.lr_warmup_iters >= schedule.lr_decay_iters) {
    refuse_usage("--lr-warmup-iters and --lr-decay-iters",
                 {.expected = "0 <= --lr-warmup-iters < --lr-decay-iters (which is --train-iters by default)",
                  .got = fmt::format("--lr-warmup-iters {} and --lr-decay-iters {}", schedule.lr_warmup_iters,
                                     schedule.lr_decay_iters),
                  .remedy = "lower --lr-warmup-iters"});
  }
  if (!(schedule.lr_warmup_fraction >= 0.0 && schedule.lr_warmup_fraction < 1.0)) {
    refuse_usage("--lr-warmup-fraction", {.expected = "a value of at least 0 and less than 1",
                                          .got = fmt::format("{}", schedule.lr_warmup_fraction),
                                          .remedy = "such as 0.01"});
  }
  if (schedule.lr_warmup_fraction > 0.0 && schedule.lr_warmup_iters > 0) {
    refuse_usage("--lr-warmup-fraction and --lr-warmup-iters",
                 {.expected = "one of them",
                  .got = fmt::format("{} and {}", schedule.lr_warmup_fraction, schedule.lr_warmup_iters),
                  .remedy = "remove one"});
  }
  const bool is_wsd = schedule.lr_decay_style == LrDecayStyle::kWsd;
  const auto stable_end = static_cast<double>(schedule.lr_decay_iters - schedule.lr_wsd_decay_iters);
  if (is_wsd && (schedule.lr_wsd_decay_iters < 1 || stable_end < warmup_steps(schedule))) {
    refuse_usage(
        "--lr-decay-style WSD and --lr-wsd-decay-iters",
        {.expected = fmt::format("--lr-wsd-decay-iters from 1 to {} (--lr-decay-iters less the warm-up)",
                                 std::floor(static_cast<double>(schedule.lr_decay_iters) - warmup_steps(schedule))),
         .got = fmt::format("{}", schedule.lr_wsd_decay_iters),
         .remedy = "it is the length of the last phase"});
  }
}

}  // namespace megalith

// Learning rate as a pure function of the steps or the samples that a run has done, with the formulas of Megatron's
// scheduler.
#pragma once

#include <cstdint>

namespace megalith {

enum class LrDecayStyle { kConstant, kLinear, kCosine, kWsd, kInverseSquareRoot };

// Shape of the last phase of warmup-stable-decay (Hu et al. 2024, arXiv:2404.06395).
enum class WsdDecayStyle { kExponential, kLinear, kCosine, kMinusSqrt };

struct LrSchedule {
  double lr = 0.0;      // maximum
  double min_lr = 0.0;  // floor after lr_decay_iters
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  std::int64_t lr_decay_iters = 0;   // step at which min_lr is reached, counted from step 0
  std::int64_t lr_warmup_iters = 0;  // linear from lr_warmup_init at step 0 to lr at this step
  double lr_warmup_fraction = 0.0;   // in place of lr_warmup_iters: that share of lr_decay_iters, not rounded
  double lr_warmup_init = 0.0;
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;
  std::int64_t lr_wsd_decay_iters = 0;  // length of the last phase
  // In place of these three where the first one is above 0.
  std::int64_t lr_decay_samples = 0;
  std::int64_t lr_warmup_samples = 0;
  std::int64_t lr_wsd_decay_samples = 0;

  bool by_samples() const { return lr_decay_samples > 0; }
};

// What a run has done before a step. Skipped steps and their samples count.
struct RunProgress {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  friend bool operator==(const RunProgress&, const RunProgress&) = default;
};

// Learning rate of the step that follows `done`: with a warm-up the first step runs at lr_warmup_init, as in Megatron.
double learning_rate(const LrSchedule& schedule, const RunProgress& done);

// Throws Error (exit code 2) naming the flags and valid values.
void validate(const LrSchedule& schedule);

}  // namespace megalith

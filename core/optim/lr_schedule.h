// Learning rate as a pure function of a run's steps or samples, with the formulas of Megatron's scheduler.
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
  std::int64_t lr_decay_iters = 0;   // step that reaches min_lr, counted from step 0
  std::int64_t lr_warmup_iters = 0;  // linear from lr_warmup_init at step 0 to lr at this step
  double lr_warmup_fraction = 0.0;   // replaces lr_warmup_iters: fraction of lr_decay_iters, not rounded
  double lr_warmup_init = 0.0;
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;
  std::int64_t lr_wsd_decay_iters = 0;  // length of the last phase
  // Lengths in samples; they replace the lengths in iters if lr_decay_samples is above 0.
  std::int64_t lr_decay_samples = 0;
  std::int64_t lr_warmup_samples = 0;
  std::int64_t lr_wsd_decay_samples = 0;

  bool by_samples() const { return lr_decay_samples > 0; }
};

// Progress of a run ahead of a step. Skipped steps and their samples count.
struct RunProgress {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  friend bool operator==(const RunProgress&, const RunProgress&) = default;
};

// Returns the learning rate of the step after `done`. The first step of a warm-up has lr_warmup_init, as in Megatron.
double learning_rate(const LrSchedule& schedule, const RunProgress& done);

// Throws Error (exit code 2) with the flags and the valid values.
void validate(const LrSchedule& schedule);

}  // namespace megalith

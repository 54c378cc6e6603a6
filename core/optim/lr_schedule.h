// Learning rate as a pure function of the step, with the formulas of Megatron's scheduler.
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
};

// Learning rate of the step that follows `completed_steps` optimizer steps: the first step has completed_steps = 0, so
// that with a warm-up it runs at lr_warmup_init, as in Megatron. Skipped steps count.
double learning_rate(const LrSchedule& schedule, std::int64_t completed_steps);

// Throws Error (exit code 2) naming the flags and valid values.
void validate(const LrSchedule& schedule);

}  // namespace megalith

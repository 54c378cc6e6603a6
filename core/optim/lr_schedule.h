// Learning rate and weight decay as pure functions of a run's steps or samples, with the formulas of Megatron's
// scheduler.
#pragma once

#include <cstdint>

namespace megalith {

enum class LrDecayStyle { kConstant, kLinear, kCosine, kWsd, kInverseSquareRoot };

// Shape of the last phase of warmup-stable-decay (Hu et al. 2024, arXiv:2404.06395).
enum class WsdDecayStyle { kExponential, kLinear, kCosine, kMinusSqrt };

enum class WeightDecayStyle { kConstant, kLinear, kCosine };

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
  double decoupled_lr = 0;       // maximum for embedding and head; 0: lr
  double decoupled_min_lr = -1;  // their floor; negative: min_lr
  // Weight decay from start to end of the run; with kConstant that of OptimizerOptions.
  double start_weight_decay = 0, end_weight_decay = 0;
  WeightDecayStyle weight_decay_incr_style = WeightDecayStyle::kConstant;
  std::int64_t weight_decay_incr_length = 0;  // of the run, in samples with by_samples(), otherwise in steps
  // Samples that a length of one step stands for if batches grow; 0: steps have equal sizes and are counted.
  std::int64_t samples_per_step = 0;

  bool by_samples() const { return lr_decay_samples > 0; }
};

// Progress of a run ahead of a step. Skipped steps and their samples count. Schedules do not advance in the steps of
// --iterations-to-skip, which train nothing.
struct RunProgress {
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  std::int64_t passed_steps = 0;  // of --iterations-to-skip, as the next
  std::int64_t passed_samples = 0;
  friend bool operator==(const RunProgress&, const RunProgress&) = default;
};

// Returns the learning rate of the step after `done`. The first step of a warm-up has lr_warmup_init, as in Megatron.
double learning_rate(const LrSchedule& schedule, const RunProgress& done);
// Same for embedding and head.
double decoupled_learning_rate(const LrSchedule& schedule, const RunProgress& done);
// Weight decay of the step after `done` over its value at the end of the run.
double weight_decay_scale(const LrSchedule& schedule, const RunProgress& done);

// Values of a step that the optimizer reads on the device.
struct StepRates {
  float main = 0;       // learning rate
  float decoupled = 0;  // learning rate of embedding and head
  double weight_decay_scale = 1;
};
StepRates rates_after(const LrSchedule& schedule, const RunProgress& done);

// Throws Error (exit code 2) with the flags and the valid values.
void validate(const LrSchedule& schedule);

}  // namespace megalith

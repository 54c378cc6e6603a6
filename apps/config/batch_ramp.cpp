#include "apps/config/batch_ramp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "apps/config/run_length.h"
#include "apps/config/training_options.h"
#include "core/base/error.h"

namespace megalith {

namespace {

constexpr const char* kFlag = "--rampup-batch-size";
constexpr std::int64_t kMaxStages = 1 << 16;

struct Ramp {
  explicit Ramp(const std::vector<std::int64_t>& values) : start(values[0]), increment(values[1]), samples(values[2]) {}
  std::int64_t start, increment, samples;
};

// Steps from `consumed` on, each with this batch, of which the last one ends where the batch is another.
std::int64_t steps_of_stage(const TrainingOptions& train, std::int64_t consumed, std::int64_t batch) {
  if (batch == train.global_batch_size) return std::numeric_limits<std::int64_t>::max();
  std::int64_t low = 1, high = (Ramp(train.rampup_batch_size).samples - consumed) / batch + 1;  // ends past the ramp
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (batch_after(train, consumed + middle * batch) == batch) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

std::int64_t batch_after(const TrainingOptions& train, std::int64_t consumed_samples) {
  if (train.rampup_batch_size.empty()) return train.global_batch_size;
  const Ramp ramp(train.rampup_batch_size);
  if (consumed_samples > ramp.samples) return train.global_batch_size;
  const std::int64_t increments = (train.global_batch_size - ramp.start) / ramp.increment;
  const double samples_per_increment = static_cast<double>(ramp.samples) / static_cast<double>(increments);
  const auto reached = static_cast<std::int64_t>(static_cast<double>(consumed_samples) / samples_per_increment);
  return ramp.start + reached * ramp.increment;
}

RunEnd end_of_run(const TrainingOptions& train, const RunProgress& done) {
  RunEnd end{.at = done};
  if (train.train_samples == 0) {
    end.at.samples = samples_to_train(train, done);
    end.at.steps = std::max(train.train_iters, done.steps);
    return end;
  }
  for (;;) {
    const std::int64_t batch = batch_after(train, end.at.samples);
    const std::int64_t whole = (train.train_samples - end.at.samples) / batch;
    if (whole <= 0) break;
    const std::int64_t steps = std::min(whole, steps_of_stage(train, end.at.samples, batch));
    end.at.steps += steps;
    end.at.samples += steps * batch;
  }
  end.left_over = std::max<std::int64_t>(train.train_samples - end.at.samples, 0);
  return end;
}

bool is_ramp_sound(const TrainingOptions& train) {
  if (train.rampup_batch_size.empty()) return true;
  const Ramp ramp(train.rampup_batch_size);
  const std::int64_t all = train.global_batch_size - ramp.start;
  return all > 0 && all % ramp.increment == 0 && all / ramp.increment <= kMaxStages;
}

void check_ramp(const TrainingOptions& train) {
  if (is_ramp_sound(train)) return;
  const Ramp ramp(train.rampup_batch_size);
  const std::int64_t to = train.global_batch_size;
  const auto refuse = [&](const std::string& expected, const std::string& remedy) {
    refuse_usage(
        fmt::format("{} and --global-batch-size", kFlag),
        {.expected = expected,
         .got = fmt::format("{} {} and --global-batch-size {}", kFlag, fmt::join(train.rampup_batch_size, " "), to),
         .remedy = remedy});
  };
  if (to == 0) {
    refuse_usage(fmt::format("{} and --global-batch-size", kFlag),
                 {.expected = fmt::format("{} only with --global-batch-size", kFlag),
                  .got = fmt::format("{} alone", kFlag),
                  .remedy = fmt::format("use --global-batch-size, or remove {}", kFlag)});
  }
  if (ramp.start >= to) refuse("START below --global-batch-size", "lower START, or leave the ramp out");
  if ((to - ramp.start) % ramp.increment != 0) {
    refuse(fmt::format("--global-batch-size - START, which is {}, as a multiple of INCREMENT", to - ramp.start),
           fmt::format("such as --global-batch-size {}",
                       ramp.start + ((to - ramp.start) / ramp.increment + 1) * ramp.increment));
  }
  refuse(fmt::format("at most {} increments", kMaxStages), "raise INCREMENT");
}

void check_ramp_divides(const TrainingOptions& train, std::int64_t multiple) {
  if (train.rampup_batch_size.empty()) return;
  const Ramp ramp(train.rampup_batch_size);
  if (ramp.start % multiple == 0 && ramp.increment % multiple == 0) return;
  const std::int64_t replicas = multiple / train.micro_batch_size;
  refuse_usage(kFlag, {.expected = fmt::format("START and INCREMENT that are multiples of --micro-batch-size {} x {} "
                                               "data-parallel ranks",
                                               train.micro_batch_size, replicas),
                       .got = fmt::format("{} and {}", ramp.start, ramp.increment),
                       .remedy = fmt::format("use multiples of {}", multiple)});
}

}  // namespace megalith

#include "core/optim/batch_ramp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "core/base/error.h"

namespace megalith {

namespace {

constexpr const char* kFlag = "--rampup-batch-size";
constexpr std::int64_t kMaxStages = 1 << 16;

struct Ramp {
  explicit Ramp(const std::vector<std::int64_t>& values) : start(values[0]), increment(values[1]), samples(values[2]) {}
  std::int64_t start, increment, samples;
};

}  // namespace

std::int64_t batch_after(const BatchSizes& sizes, std::int64_t consumed_samples) {
  if (sizes.rampup_batch_size.empty()) return sizes.global_batch_size;
  const Ramp ramp(sizes.rampup_batch_size);
  if (consumed_samples > ramp.samples) return sizes.global_batch_size;
  const std::int64_t increments = (sizes.global_batch_size - ramp.start) / ramp.increment;
  const double samples_per_increment = static_cast<double>(ramp.samples) / static_cast<double>(increments);
  const auto reached = static_cast<std::int64_t>(static_cast<double>(consumed_samples) / samples_per_increment);
  return ramp.start + reached * ramp.increment;
}

std::int64_t steps_of_stage(const BatchSizes& sizes, std::int64_t consumed, std::int64_t batch) {
  if (batch == sizes.global_batch_size) return std::numeric_limits<std::int64_t>::max();
  std::int64_t low = 1, high = (Ramp(sizes.rampup_batch_size).samples - consumed) / batch + 1;  // ends past the ramp
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (batch_after(sizes, consumed + middle * batch) == batch) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bool is_ramp_sound(const BatchSizes& sizes) {
  if (sizes.rampup_batch_size.empty()) return true;
  const Ramp ramp(sizes.rampup_batch_size);
  const std::int64_t all = sizes.global_batch_size - ramp.start;
  return all > 0 && all % ramp.increment == 0 && all / ramp.increment <= kMaxStages;
}

void check_ramp(const BatchSizes& sizes) {
  if (is_ramp_sound(sizes)) return;
  const Ramp ramp(sizes.rampup_batch_size);
  const std::int64_t to = sizes.global_batch_size;
  const auto refuse = [&](const std::string& expected, const std::string& remedy) {
    refuse_usage(
        fmt::format("{} and --global-batch-size", kFlag),
        {.expected = expected,
         .got = fmt::format("{} {} and --global-batch-size {}", kFlag, fmt::join(sizes.rampup_batch_size, " "), to),
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

void check_ramp_divides(const BatchSizes& sizes, std::int64_t multiple) {
  if (sizes.rampup_batch_size.empty()) return;
  const Ramp ramp(sizes.rampup_batch_size);
  if (ramp.start % multiple == 0 && ramp.increment % multiple == 0) return;
  const std::int64_t replicas = multiple / sizes.micro_batch_size;
  refuse_usage(kFlag, {.expected = fmt::format("START and INCREMENT that are multiples of --micro-batch-size {} x {} "
                                               "data-parallel ranks",
                                               sizes.micro_batch_size, replicas),
                       .got = fmt::format("{} and {}", ramp.start, ramp.increment),
                       .remedy = fmt::format("use multiples of {}", multiple)});
}

}  // namespace megalith

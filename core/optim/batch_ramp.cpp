#include "core/optim/batch_ramp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text/parse_number.h"
#include "core/base/text/text.h"

namespace megalith {

namespace {

constexpr const char* kFlag = "--rampup-batch-size";
constexpr std::int64_t kMaxStages = 1 << 16;

struct Ramp {
  explicit Ramp(const std::vector<std::int64_t>& values) : start(values[0]), increment(values[1]), samples(values[2]) {}
  std::int64_t start, increment, samples;
};

constexpr const char* kScheduleFlag = "--step-batch-size-schedule";

// Number such as 2.4B, rounded down; none for other texts and for numbers beyond 2^53.
std::optional<std::int64_t> number_of(std::string_view text) {
  constexpr std::string_view kUnits = "KMBT";
  constexpr double kMost = 9007199254740992;
  double unit = 1;
  const auto last = text.empty() ? ' ' : static_cast<char>(std::toupper(static_cast<unsigned char>(text.back())));
  if (const std::size_t place = kUnits.find(last); place != std::string_view::npos) {
    for (std::size_t i = 0; i <= place; ++i) unit *= 1000;
    text.remove_suffix(1);
  }
  const std::optional<double> number = parse_number<double>(std::string(text));
  if (!number || !(*number >= 0) || *number * unit > kMost) return std::nullopt;
  return static_cast<std::int64_t>(*number * unit);
}

[[noreturn]] void refuse_schedule(const std::string& got) {
  refuse_usage(kScheduleFlag, {.expected = "THRESHOLD:SIZE..., with thresholds in tokens that rise from 0 by at least "
                                           "one sample, and sizes above 0 that do not fall",
                               .got = escaped_short(got),
                               .remedy = "such as 0:16 2.4B:320"});
}

}  // namespace

std::vector<BatchStage> batch_stages_of(const std::vector<std::string>& schedule, std::int64_t seq_length) {
  std::string words;
  for (const std::string& text : schedule) words += text + " ";
  std::ranges::replace(words, ',', ' ');
  std::vector<BatchStage> stages;
  for (std::size_t begin = words.find_first_not_of(' '); begin != std::string::npos;
       begin = words.find_first_not_of(' ', words.find(' ', begin))) {
    const std::string word = words.substr(begin, words.find(' ', begin) - begin);
    const std::size_t colon = word.find(':');
    if (colon == std::string::npos) refuse_schedule(word);
    const std::string_view text = word;
    const std::optional<std::int64_t> tokens = number_of(text.substr(0, colon)),
                                      batch = number_of(text.substr(colon + 1));
    if (!tokens || !batch || *batch == 0) refuse_schedule(word);
    stages.push_back({.samples = *tokens / std::max<std::int64_t>(seq_length, 1), .batch = *batch});
  }
  std::ranges::sort(stages, {}, &BatchStage::samples);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const bool is_sound = i == 0 ? stages[0].samples == 0
                                 : stages[i].samples > stages[i - 1].samples && stages[i].batch >= stages[i - 1].batch;
    if (!is_sound) refuse_schedule(words.substr(0, words.size() - 1));
  }
  return stages;
}

std::int64_t batch_after(const BatchSizes& sizes, std::int64_t consumed_samples) {
  if (!sizes.batch_stages.empty()) {
    const auto next = std::ranges::upper_bound(sizes.batch_stages, consumed_samples, {}, &BatchStage::samples);
    return std::prev(next)->batch;
  }
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
  if (!sizes.batch_stages.empty()) {
    const auto next = std::ranges::upper_bound(sizes.batch_stages, batch, {}, &BatchStage::batch);
    return (next->samples - consumed + batch - 1) / batch;
  }
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

std::vector<std::int64_t> smaller_batches(const BatchSizes& sizes) {
  std::vector<std::int64_t> batches;
  for (const BatchStage& stage : sizes.batch_stages) batches.push_back(stage.batch);
  if (!sizes.rampup_batch_size.empty()) {
    const Ramp ramp(sizes.rampup_batch_size);
    for (std::int64_t batch = ramp.start; batch < sizes.global_batch_size; batch += ramp.increment)
      batches.push_back(batch);
  }
  batches.erase(std::ranges::unique(batches).begin(), batches.end());
  std::erase(batches, sizes.global_batch_size);
  return batches;
}

bool is_ramp_sound(const BatchSizes& sizes) {
  if (sizes.rampup_batch_size.empty()) return true;
  const Ramp ramp(sizes.rampup_batch_size);
  const std::int64_t all = sizes.global_batch_size - ramp.start;
  return all > 0 && all % ramp.increment == 0 && all / ramp.increment <= kMaxStages;
}

void check_ramp(const BatchSizes& sizes) {
  if (!sizes.batch_stages.empty() && sizes.batch_stages.back().batch != sizes.global_batch_size) {
    refuse_usage(fmt::format("{} and --global-batch-size", kScheduleFlag),
                 {.expected = fmt::format("--global-batch-size {}, the last size", sizes.batch_stages.back().batch),
                  .got = fmt::format("{}", sizes.global_batch_size),
                  .remedy = "remove --global-batch-size"});
  }
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
  for (const BatchStage& stage : sizes.batch_stages) {
    if (stage.batch % multiple == 0) continue;
    refuse_usage(kScheduleFlag,
                 {.expected = fmt::format("sizes that are multiples of --micro-batch-size {} x {} data-parallel ranks",
                                          sizes.micro_batch_size, multiple / sizes.micro_batch_size),
                  .got = fmt::format("{}", stage.batch),
                  .remedy = fmt::format("use multiples of {}", multiple)});
  }
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

#include "apps/run/step_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "apps/config/data_options.h"
#include "apps/config/options.h"
#include "apps/config/training_options.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/data/packing.h"
#include "core/data/sampler.h"
#include "core/optim/batch_ramp.h"

namespace megalith {

StepSamples::StepSamples(const Options& options, const RunConfig& config, const Mesh& mesh, const Datasets& data)
    : options_(options), config_(config), mesh_(mesh), data_(data) {}

std::int64_t StepSamples::microbatches_after(std::int64_t consumed_samples) const {
  return batch_after(options_.train, consumed_samples) / (config_.sequences * config_.mesh.dp);
}

StepInput StepSamples::read(const Evaluated& set, const Place& place, Samples& samples) const {
  const auto length = static_cast<std::size_t>(config_.seq_length + 1);
  const bool has_marks = config_.marks.any() || set.once;
  const auto count = static_cast<std::size_t>(place.microbatches * config_.sequences);
  StepInput input;
  samples.tokens.resize(count * length);
  samples.marks.resize(has_marks ? count : 0);
  const std::int64_t step_samples = place.microbatches * config_.sequences * mesh_.sizes().dp;
  const std::vector<std::int64_t> order = balanced_order(set.from, place.consumed_samples, step_samples);
  const std::vector<std::int64_t> numbers = number_microbatches(order, config_.sequences);
  std::size_t at = 0;
  for (std::int64_t m = 0; m < place.microbatches; ++m) {
    const SampleRange range = microbatch_samples({.consumed_samples = place.consumed_samples,
                                                  .microbatch = m,
                                                  .micro_batch_size = config_.sequences,
                                                  .data_parallel_size = mesh_.sizes().dp,
                                                  .data_parallel_rank = mesh_.coordinates().dp});
    const std::int64_t in_order = (range.begin - place.consumed_samples) / config_.sequences;
    const std::int64_t number = order.empty() ? in_order : numbers[static_cast<std::size_t>(in_order)];
    input.first_samples.push_back(place.consumed_samples + number * config_.sequences);
    for (std::int64_t sample = range.begin; sample < range.end; ++sample, ++at) {
      const auto in_step = static_cast<std::size_t>(sample - place.consumed_samples);
      const std::int64_t k = order.empty() ? sample : place.consumed_samples + order[in_step];
      SampleMarks* const marks = has_marks ? &samples.marks[at] : nullptr;
      read_sample(set, k, std::span(samples.tokens).subspan(at * length, length), marks);
    }
  }
  input.tokens = samples.tokens;
  input.marks = samples.marks;
  return input;
}

void StepSamples::read_sample(const Evaluated& set, std::int64_t k, std::span<std::int32_t> tokens,
                              SampleMarks* marks) const {
  const std::int64_t size = set.from.size();
  const auto rows = static_cast<std::int32_t>(tokens.size() - 1);
  if (marks != nullptr)
    *marks = {.trained = std::vector<std::uint8_t>(tokens.size() - 1, 1),
              .documents = {{.rows = rows, .tokens = rows}}};
  set.from.sample(k % size, tokens, marks);  // only an evaluation passes the last sample, see read_training
  if (marks == nullptr) return;
  check_documents(*marks, k % size);
  if (set.once && k >= size) std::ranges::fill(marks->trained, std::uint8_t{0});
}

// Returns an order of the step's packs in which microbatches have similar costs of attention; empty: as they are.
std::vector<std::int64_t> StepSamples::balanced_order(const Dataset& dataset, std::int64_t first,
                                                      std::int64_t count) const {
  if (!options_.data.sft) return {};
  std::vector<std::int64_t> squares;
  for (std::int64_t k = first; k < first + count; ++k) squares.push_back(dataset.squares(k % dataset.size()));
  const std::int64_t ranks = mesh_.sizes().dp, packs = config_.sequences;
  return balance(squares, {.ranks = ranks, .microbatches = count / (ranks * packs), .packs_per_microbatch = packs});
}

void StepSamples::check_documents(const SampleMarks& marks, std::int64_t sample) const {
  const std::int64_t capacity = config_.marks.documents, documents = std::ssize(marks.documents);
  if (capacity == 0 || documents <= capacity) return;
  refuse_usage(fmt::format("documents of sample {}", sample),
               {.expected = fmt::format("at most {}, for which memory was planned", counted(capacity, "document")),
                .got = std::to_string(documents),
                .remedy = fmt::format("continue with --max-documents-per-sample {}",
                                      std::bit_ceil(static_cast<std::uint64_t>(documents)))});
}

// One rank of each model copy counts its samples.
void StepSamples::count(Communicator& world, StepInput& input) const {
  if (input.marks.empty()) return;
  SampleTokens own;
  const MeshCoordinates& at = mesh_.coordinates();
  if (at.tp == 0 && at.cp == 0 && at.pp == 0) {
    for (const SampleMarks& marks : input.marks) own.add(marks, config_.documents() > 0);
  }
  input.of_batch = {};
  std::int64_t most = 0;
  for (const SampleTokens& of_rank : world.host_gather(own)) {
    input.of_batch = input.of_batch + of_rank;
    most = std::max(most, of_rank.pairs);
  }
  const double mean = static_cast<double>(input.of_batch.pairs) / static_cast<double>(mesh_.sizes().dp);
  input.imbalance = mean > 0 ? static_cast<double>(most) / mean : 1;
}

// Reads training samples, which never repeat at the end of the data: dataset sizes follow from samples_to_train.
StepInput StepSamples::read_training(const RunProgress& before, Samples& samples) const {
  const std::int64_t end = before.samples + batch_after(options_.train, before.samples);
  if (end > data_.train.size()) {
    refuse_usage("--data-path",
                 {.expected = fmt::format("{} for step {}", counted(end, "training sample"), before.steps + 1),
                  .got = std::to_string(data_.train.size()),
                  .remedy = "train for fewer steps, or give each prefix a weight to read several epochs"});
  }
  StepInput input = read(
      {data_.train}, {.consumed_samples = before.samples, .microbatches = microbatches_after(before.samples)}, samples);
  input.iteration = before.steps + 1;
  input.rates = rates_after(options_.train.schedule, before);
  return input;
}

void StepSamples::read_next(const RunProgress& before) { next_ = read_training(before, next_samples_); }

void StepSamples::read_ahead(const RunProgress& before) {
  try {
    read_next(before);
  } catch (const Error&) {
    error_ = std::current_exception();
  }
}

StepInput StepSamples::again(const RunProgress& before) { return read_training(before, samples_); }

StepInput StepSamples::evaluation(const Evaluated& set, std::int64_t consumed_samples, std::int64_t iteration) {
  const std::int64_t size = set.from.size(), end = consumed_samples + options_.train.global_batch_size;
  if (mesh_.rank() == 0 && end > size && !set.once && !std::exchange(warned_of_wrap_, true))
    log_info(
        fmt::format("evaluations have read all {} and restart with the first", counted(size, "validation sample")));
  StepInput input =
      read(set, {.consumed_samples = consumed_samples, .microbatches = config_.evaluation_microbatches}, samples_);
  input.iteration = iteration;
  return input;
}

void StepSamples::check_files() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  if (start < next_check_) return;
  try {
    data_.train.check_unchanged();
    data_.valid.check_unchanged();
    data_.test.check_unchanged();
  } catch (const Error&) {
    error_ = std::current_exception();
  }
  constexpr int kShare = 100;  // at most 1 / kShare of the time, also for many files on a slow file system
  next_check_ = Clock::now() + kShare * (Clock::now() - start);
}

void StepSamples::rethrow() const {
  if (error_) std::rethrow_exception(error_);
}

}  // namespace megalith

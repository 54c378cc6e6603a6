#include "apps/run/step_samples.h"

#include <fmt/format.h>

#include <bit>
#include <string>
#include <utility>

#include "apps/config/options.h"
#include "apps/config/training_options.h"
#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/data/sampler.h"
#include "core/optim/batch_ramp.h"

namespace megalith {

StepSamples::StepSamples(const Options& options, const RunConfig& config, const Mesh& mesh, const Datasets& data)
    : options_(options), config_(config), mesh_(mesh), data_(data) {}

std::int64_t StepSamples::microbatches_after(std::int64_t consumed_samples) const {
  return batch_after(options_.train, consumed_samples) / (config_.sequences * config_.mesh.dp);
}

StepInput StepSamples::read(const Dataset& dataset, const Place& place, Samples& samples) const {
  const std::int64_t length = config_.seq_length + 1;
  const bool has_marks = config_.marks.any();
  const auto count = static_cast<std::size_t>(place.microbatches * config_.sequences);
  StepInput input;
  samples.tokens.resize(count * static_cast<std::size_t>(length));
  samples.marks.resize(has_marks ? count : 0);
  std::size_t at = 0;
  for (std::int64_t m = 0; m < place.microbatches; ++m) {
    const SampleRange range = microbatch_samples({.consumed_samples = place.consumed_samples,
                                                  .microbatch = m,
                                                  .micro_batch_size = config_.sequences,
                                                  .data_parallel_size = mesh_.sizes().dp,
                                                  .data_parallel_rank = mesh_.coordinates().dp});
    input.first_samples.push_back(range.begin);
    for (std::int64_t sample = range.begin; sample < range.end; ++sample, ++at) {
      const std::int64_t k = sample % dataset.size();  // only an evaluation passes the last sample, see read_training
      SampleMarks* const marks = has_marks ? &samples.marks[at] : nullptr;
      dataset.sample(
          k, std::span(samples.tokens).subspan(at * static_cast<std::size_t>(length), static_cast<std::size_t>(length)),
          marks);
      if (marks != nullptr) check_documents(*marks, k);
    }
  }
  input.tokens = samples.tokens;
  input.marks = samples.marks;
  return input;
}

void StepSamples::check_documents(const SampleMarks& marks, std::int64_t sample) const {
  const std::int64_t capacity = config_.marks.documents, documents = std::ssize(marks.documents);
  if (capacity == 0 || documents <= capacity) return;
  refuse_usage("--data-path: sample " + std::to_string(sample),
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
    for (const SampleMarks& marks : input.marks) own.add(marks);
  }
  input.of_batch = {};
  for (const SampleTokens& of_rank : world.host_gather(own)) input.of_batch = input.of_batch + of_rank;
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
      data_.train, {.consumed_samples = before.samples, .microbatches = microbatches_after(before.samples)}, samples);
  input.iteration = before.steps + 1;
  input.learning_rate = static_cast<float>(learning_rate(options_.train.schedule, before));
  return input;
}

void StepSamples::read_next(const TrainState& state) {
  next_ = read_training({.steps = state.step, .samples = state.consumed_samples}, next_samples_);
}

void StepSamples::read_ahead(const TrainState& state) {
  try {
    read_next(state);
  } catch (const Error&) {
    error_ = std::current_exception();
  }
}

StepInput StepSamples::again(const RunProgress& before) { return read_training(before, samples_); }

StepInput StepSamples::validation(std::int64_t consumed_samples, std::int64_t iteration) {
  const std::int64_t size = data_.valid.size(), end = consumed_samples + options_.train.global_batch_size;
  if (mesh_.rank() == 0 && end > size && !std::exchange(warned_of_wrap_, true))
    log_info(
        fmt::format("evaluations have read all {} and restart with the first", counted(size, "validation sample")));
  StepInput input = read(
      data_.valid, {.consumed_samples = consumed_samples, .microbatches = config_.evaluation_microbatches}, samples_);
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

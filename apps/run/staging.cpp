#include "apps/run/staging.h"

#include <algorithm>
#include <iterator>

#include "core/base/error.h"

namespace megalith {

namespace {

constexpr std::size_t kSteps = 3;  // two pending, and the one before, whose end is when the next begins

constexpr std::size_t kRoom = 2;   // numbers of StagedStep::room_needed
constexpr std::size_t kMoved = 2;  // and of moved_bytes

std::int64_t most_microbatches(const RunConfig& config) {
  return std::max(config.microbatches, config.evaluation_microbatches);
}

std::size_t tokens_of(const RunConfig& config, std::int64_t microbatches) {
  return static_cast<std::size_t>(microbatches * config.rank_tokens());
}

std::size_t bytes_of(const RunConfig& config, const ReportSizes& report) {
  constexpr std::size_t kPadding = 7 * 256;  // each of the seven buffers is aligned
  const std::size_t numbers =
      2 * tokens_of(config, most_microbatches(config)) + report.sums + report.counts + kRoom;  // of 4 bytes
  return kSteps * (numbers * sizeof(std::int32_t) + kMoved * sizeof(std::int64_t) + sizeof(StepParameters) + kPadding);
}

}  // namespace

BlankSamples::BlankSamples(const RunConfig& config, float learning_rate, std::int64_t microbatches)
    : tokens(static_cast<std::size_t>(microbatches * config.sequences * (config.seq_length + 1))),
      input{.iteration = 1,
            .learning_rate = learning_rate,
            .first_samples = std::vector<std::int64_t>(static_cast<std::size_t>(microbatches)),
            .tokens = tokens} {}

Staging::Staging(DeviceType device, const RunConfig& config, const SequencePart& part, const ReportSizes& report)
    : config_(config),
      most_microbatches_(most_microbatches(config)),
      part_(part),
      arena_(device, bytes_of(config, report), "step staging") {
  for (std::size_t i = 0; i < kSteps; ++i) {
    const auto& step = steps_.emplace_back(std::make_unique<StagedStep>());
    step->tokens = arena_.allocate_as<std::int32_t>(tokens_of(config, most_microbatches_));
    step->labels = arena_.allocate_as<std::int32_t>(tokens_of(config, most_microbatches_));
    step->report = arena_.allocate_as<StepParameters>(1);
    step->sums = arena_.allocate_as<float>(report.sums);
    step->counts = arena_.allocate_as<std::int32_t>(report.counts);
    step->room_needed = arena_.allocate_as<std::int32_t>(kRoom);
    step->moved_bytes = arena_.allocate_as<std::int64_t>(kMoved);
    if (device == DeviceType::kPlan) continue;
    *step->report = {};  // never what other runs left there
    std::fill_n(step->sums, report.sums, 0.0f);
    std::fill_n(step->counts, report.counts, 0);
    std::fill_n(step->room_needed, kRoom, 0);
    std::fill_n(step->moved_bytes, kMoved, 0);
  }
}

StagedStep& Staging::ago(int steps) {
  const auto count = static_cast<std::int64_t>(steps_.size());
  return *steps_[static_cast<std::size_t>((staged_ + count - steps) % count)];
}

void Staging::stage(Stream& compute, const StepInput& input) {
  const std::int64_t microbatches = std::ssize(input.first_samples), sequences = microbatches * config_.sequences;
  const std::int64_t length = config_.seq_length, mine = config_.rank_length();
  require(microbatches <= most_microbatches_, "StepInput has more microbatches than there is room for");
  require(input.tokens.size() == static_cast<std::size_t>(sequences * (length + 1)),
          "StepInput::tokens has a wrong size");
  ++staged_;
  StagedStep& step = last();
  step.iteration = input.iteration;
  step.learning_rate = input.learning_rate;
  step.first_samples = input.first_samples;
  Access access("stage tokens");
  access.add(step.tokens, tokens_of(config_, microbatches) * sizeof(std::int32_t), true);
  access.add(step.labels, tokens_of(config_, microbatches) * sizeof(std::int32_t), true);
  compute.announce_host(access);
  if (compute.device() == DeviceType::kPlan) return;
  const std::int64_t run = mine == length ? mine : mine / 2;  // of neighbouring tokens
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int32_t* from = input.tokens.data() + s * (length + 1);
    for (std::int64_t row = 0; row < mine; row += run) {
      const std::int64_t position = part_.position(row, mine);
      std::copy_n(from + position, run, step.tokens + s * mine + row);
      std::copy_n(from + position + 1, run, step.labels + s * mine + row);
    }
  }
}

}  // namespace megalith

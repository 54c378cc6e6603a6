#include "apps/run/staging.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "apps/run/rank.h"
#include "core/base/error.h"
#include "core/device/copy.h"

namespace megalith {

namespace {

constexpr std::size_t kSteps = 3;  // two pending steps and the previous step, at whose end the next begins

constexpr std::size_t kRoom = 2;   // numbers in StagedStep::room_needed
constexpr std::size_t kMoved = 2;  // numbers in StagedStep::moved_bytes

std::int64_t max_microbatches(const RunConfig& config) {
  return std::max(config.microbatches, config.evaluation_microbatches);
}

std::size_t tokens_of(const RunConfig& config, std::int64_t microbatches) {
  return static_cast<std::size_t>(microbatches * config.rank_tokens());
}

std::size_t documents_of(const RunConfig& config, std::int64_t microbatches) {
  return static_cast<std::size_t>(microbatches * config.documents());
}

// Numbers of documents that this rank's queries share with keys of other ranks.
std::size_t shared_documents_of(const RunConfig& config, const SharedSample& sample, std::int64_t microbatches) {
  return config.marks.documents == 0
             ? 0
             : static_cast<std::size_t>(microbatches * (sample.ranks - 1) * 4 * config.sequences);
}

std::size_t bytes_of(const RunConfig& config, const SharedSample& sample, const ReportSizes& report) {
  constexpr std::size_t kPadding = 11 * 256;  // alignment of each of the eleven buffers
  const std::size_t of_token = config.marks.has_positions() ? 3 : 2;
  const std::size_t numbers =  // of 4 bytes
      of_token * tokens_of(config, max_microbatches(config)) + 2 * documents_of(config, max_microbatches(config)) +
      shared_documents_of(config, sample, max_microbatches(config)) + report.sums + report.counts + kRoom;
  return kSteps * (numbers * sizeof(std::int32_t) + kMoved * sizeof(std::int64_t) + sizeof(StepParameters) + kPadding);
}

std::optional<StepSplit> split_of(const StagedStep& step, const StagedStep& previous) {
  if (step.clock.level() == 0) return std::nullopt;
  const auto parts = step.clock.read();
  const auto seconds = [&](StepPart part) { return parts[static_cast<std::size_t>(part)]; };
  StepSplit split{.communication = seconds(StepPart::kCommunication),
                  .copies = seconds(StepPart::kCopies),
                  .host = step.follows ? seconds_between(previous.reported, step.begun) : 0};
  const double all = seconds_between(step.begun, step.reported);
  split.compute = std::max(all - split.communication - split.copies, 0.0);
  split.host = std::max(split.host, 0.0);
  if (step.clock.level() < 2) return split;
  split.forward = seconds(StepPart::kForward);
  split.backward = seconds(StepPart::kBackward);
  split.optimizer = seconds(StepPart::kOptimizer);
  return split;
}

std::optional<float> mean_of(const std::vector<ExpertLoad>& loads, std::optional<float> ExpertLoad::*loss) {
  if (loads.empty() || !(loads.front().*loss)) return std::nullopt;
  double sum = 0;
  for (const ExpertLoad& load : loads) sum += static_cast<double>((load.*loss).value_or(0));
  return static_cast<float>(sum / static_cast<double>(loads.size()));
}

void copy_room(Rank& rank, StagedStep& step) {
  if (const Tensor& needed = rank.step.room_needed)
    copy_to_host(rank.streams.compute, step.room_needed, needed.data, needed.bytes());
}

}  // namespace

BlankSamples::BlankSamples(const RunConfig& config, float learning_rate, std::int64_t microbatches)
    : tokens(static_cast<std::size_t>(microbatches * config.sequences * (config.seq_length + 1))),
      input{.iteration = 1,
            .rates = {.main = learning_rate, .decoupled = learning_rate},
            .first_samples = std::vector<std::int64_t>(static_cast<std::size_t>(microbatches)),
            .tokens = tokens} {
  if (!config.marks.any()) return;
  const auto rows = static_cast<std::int32_t>(config.seq_length);
  const SampleMarks one{.trained = std::vector<std::uint8_t>(static_cast<std::size_t>(rows), 1),
                        .documents = {{.rows = rows, .tokens = rows}}};
  marks.assign(static_cast<std::size_t>(microbatches * config.sequences), one);
  input.marks = marks;
  for (const SampleMarks& sample : marks) input.of_batch.add(sample, config.documents() > 0);
}

Staging::Staging(DeviceType device, const RunConfig& config, const Form& form, const ReportSizes& report)
    : config_(config),
      max_microbatches_(max_microbatches(config)),
      form_(form),
      arena_(device, bytes_of(config, form.sample, report), "step staging") {
  for (std::size_t i = 0; i < kSteps; ++i) {
    const auto& step = steps_.emplace_back(std::make_unique<StagedStep>());
    step->tokens = arena_.allocate_as<std::int32_t>(tokens_of(config, max_microbatches_));
    step->labels = arena_.allocate_as<std::int32_t>(tokens_of(config, max_microbatches_));
    if (config.marks.has_positions())
      step->positions = arena_.allocate_as<std::int32_t>(tokens_of(config, max_microbatches_));
    if (const std::size_t documents = documents_of(config, max_microbatches_); documents > 0) {
      step->document_begins = arena_.allocate_as<std::int32_t>(documents);
      step->document_lengths = arena_.allocate_as<std::int32_t>(documents);
    }
    if (const std::size_t shared = shared_documents_of(config, form.sample, max_microbatches_); shared > 0) {
      step->shared_documents = arena_.allocate_as<std::int32_t>(shared);
    }
    step->report = arena_.allocate_as<StepParameters>(1);
    step->sums = arena_.allocate_as<float>(report.sums);
    step->counts = arena_.allocate_as<std::int32_t>(report.counts);
    step->room_needed = arena_.allocate_as<std::int32_t>(kRoom);
    step->moved_bytes = arena_.allocate_as<std::int64_t>(kMoved);
    if (device == DeviceType::kPlan) continue;
    *step->report = {};  // never data of other runs
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
  require(microbatches <= max_microbatches_, "StepInput has more microbatches than the staging memory");
  require(input.tokens.size() == static_cast<std::size_t>(sequences * (length + 1)),
          "StepInput::tokens has a wrong size");
  ++staged_;
  StagedStep& step = last();
  step.iteration = input.iteration;
  step.rates = input.rates;
  step.first_samples = input.first_samples;
  set_scales(input, step);
  announce(compute, step, microbatches);
  if (compute.device() == DeviceType::kPlan) return;
  const std::int64_t run = mine == length ? mine : mine / 2;  // of adjacent tokens
  std::vector<std::int32_t> labels(static_cast<std::size_t>(length)), positions(labels.size());
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int32_t* from = input.tokens.data() + s * (length + 1);
    std::copy_n(from + 1, length, labels.begin());
    if (!input.marks.empty()) write_marks(input.marks[static_cast<std::size_t>(s)], labels, positions);
    for (std::int64_t row = 0; row < mine; row += run) {
      const std::int64_t position = form_.part.position(row, mine);
      std::copy_n(from + position, run, step.tokens + s * mine + row);
      std::copy_n(labels.data() + position, run, step.labels + s * mine + row);
      if (step.positions != nullptr) std::copy_n(positions.data() + position, run, step.positions + s * mine + row);
    }
  }
  if (config_.documents() > 0) stage_documents(input, step);
}

void Staging::announce(Stream& compute, const StagedStep& step, std::int64_t microbatches) const {
  Access access("stage samples");
  const auto add = [&](std::int32_t* numbers, std::size_t count) {
    if (numbers != nullptr) access.add(numbers, count * sizeof(std::int32_t), true);
  };
  for (std::int32_t* of_token : {step.tokens, step.labels, step.positions})
    add(of_token, tokens_of(config_, microbatches));
  for (std::int32_t* of_document : {step.document_begins, step.document_lengths})
    add(of_document, documents_of(config_, microbatches));
  add(step.shared_documents, shared_documents_of(config_, form_.sample, microbatches));
  compute.announce_host(access);
}

ReportSizes report_sizes(const Rank& rank) {
  const Tensor& counts = rank.step.counts;
  return {.sums = static_cast<std::size_t>(rank.step.sums.numel()),
          .counts = counts ? static_cast<std::size_t>(counts.numel()) : 0};
}

void enqueue_report(Rank& rank, StagedStep& step, const ActivationTransfer::Stats& moved) {
  Stream& compute = rank.streams.compute;
  if (rank.offload) {
    const ActivationTransfer::Stats& now = rank.offload->transfer.stats();
    step.bytes_out = now.bytes_out - now.bounded_out - (moved.bytes_out - moved.bounded_out);
    step.bytes_back = now.bytes_back - now.bounded_back - (moved.bytes_back - moved.bounded_back);
    // The compute stream has waited for all copies.
    if (const Tensor& bytes = rank.step.moved_bytes) copy_to_host(compute, step.moved_bytes, bytes.data, bytes.bytes());
  }
  copy_to_host(compute, step.report, rank.step.parameters, sizeof(StepParameters));
  if (const Tensor& counts = rank.step.counts) {
    copy_to_host(compute, step.sums, rank.step.sums.data, rank.step.sums.bytes());
    copy_to_host(compute, step.counts, counts.data, counts.bytes());
  }
  copy_room(rank, step);
  compute.record(step.reported);
}

StepResult read_report(Rank& rank, StagedStep& step, const StagedStep& previous) {
  Stream& compute = rank.streams.compute;
  compute.synchronize_host(step.reported);
  Access access("read the step's result");
  access.add(step.report, sizeof(StepParameters), false);
  const ReportSizes sizes = report_sizes(rank);
  access.add(step.sums, sizes.sums * sizeof(float), false);
  access.add(step.counts, sizes.counts * sizeof(std::int32_t), false);
  access.add(step.room_needed, 2 * sizeof(std::int32_t), false);
  access.add(step.moved_bytes, 2 * sizeof(std::int64_t), false);
  compute.announce_host(access);
  StepResult result{.iteration = step.iteration,
                    .loss = step.report->loss / static_cast<float>(std::max<std::int64_t>(step.of_batch.trained, 1)),
                    .of_batch = step.of_batch,
                    .imbalance = step.imbalance,
                    .grad_norm = step.report->grad_norm,
                    .expert_loads = expert_loads(rank.options.model, step.of_batch.tokens, {step.sums, sizes.sums},
                                                 {step.counts, sizes.counts}, rank.config.mesh.ep),
                    .room_needed = {.arrived = step.room_needed[0], .rows = step.room_needed[1]},
                    .lacks_room = step.report->skip == kSkipNoRoom,
                    .skipped = step.report->skip == kSkipNotFinite,
                    .adam_count = step.report->adam_count,
                    .enqueue_seconds = step.enqueue_seconds,
                    .grad_zeros = step.report->grad_zeros,
                    .params_norm = step.report->params_norm,
                    .seconds = seconds_between(step.follows ? previous.reported : step.begun, step.reported)};
  result.load_balancing_loss = mean_of(result.expert_loads, &ExpertLoad::load_balancing_loss);
  result.split = split_of(step, previous);
  if (step.times_copies) result.offload = rank.offload->transfer.times();
  result.offload.bytes_out = step.bytes_out + step.moved_bytes[0];
  result.offload.bytes_back = step.bytes_back + step.moved_bytes[1];
  result.offload.step = result.seconds;
  result.router_z_loss = mean_of(result.expert_loads, &ExpertLoad::z_loss);
  return result;
}

Evaluation report_evaluation(Rank& rank, StagedStep& step) {
  Stream& compute = rank.streams.compute;
  copy_to_host(compute, &step.report->loss, rank.step.sums.data, sizeof(float));
  copy_room(rank, step);
  compute.record(step.reported);
  if (rank.is_plan()) return {};
  compute.synchronize_host(step.reported);
  Access access("read the evaluation's loss");
  access.add(&step.report->loss, sizeof(float), false);
  access.add(step.room_needed, 2 * sizeof(std::int32_t), false);
  compute.announce_host(access);
  return {.loss = step.report->loss / static_cast<float>(std::max<std::int64_t>(step.of_batch.trained, 1)),
          .trained = step.of_batch.trained,
          .room_needed = {.arrived = step.room_needed[0], .rows = step.room_needed[1]}};
}

}  // namespace megalith

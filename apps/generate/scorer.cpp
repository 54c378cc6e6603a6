#include "apps/generate/scorer.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/device/copy.h"
#include "core/instruments/timeline.h"
#include "parallel/comm/plan_communicator.h"

namespace megalith {

namespace {

constexpr std::int64_t kLossChunk = 1024;  // rows whose logits exist at a time

}  // namespace

Scorer::Scorer(const Options& options, DeviceType device, const Sizes& sizes, Communicator* ranks,
               Instruments instruments)
    : options_(options),
      sizes_(sizes),
      model_(options, device, ranks, instruments, kLossChunk),
      host_(device,
            num_values() * sizeof(std::int32_t) + static_cast<std::size_t>(sizes.rows) * sizeof(float) + 2 * 256,
            "evaluation"),
      host_values_(host_.allocate_as<std::int32_t>(num_values())),
      host_losses_(host_.allocate_as<float>(static_cast<std::size_t>(sizes.rows))) {
  if (device == DeviceType::kPlan) return;
  plan_ = plan();
  model_.arena().use(plan_);
}

InferenceBytes Scorer::bytes(const Options& options, const Sizes& sizes, int ranks) {
  Timeline timeline;
  PlanCommunicator group("generate", {.rank = 0, .size = ranks});
  Scorer recording(options, DeviceType::kPlan, sizes, &group, {.timeline = &timeline});
  InferenceBytes bytes = lasting_bytes(recording.model_.pool());
  bytes.arena = recording.plan().peak_bytes;
  return bytes;
}

ArenaPlan Scorer::plan() const {
  Timeline timeline;
  Scorer recording(options_, DeviceType::kPlan, sizes_, nullptr, {.timeline = &timeline});
  recording.enqueue();
  return plan_arena(timeline, recording.model_.arena());
}

void Scorer::fill(std::span<const ScoredSequence* const> pack) {
  const std::int64_t rows = sizes_.rows;
  std::int32_t* const tokens = host_values_;
  std::int32_t* const labels = tokens + rows;
  std::int32_t* const positions = labels + rows;
  std::int32_t* const begins = positions + rows;
  std::int32_t* const lengths = begins + entries();
  std::int64_t row = 0, document = 0;
  for (const ScoredSequence* sequence : pack) {
    begins[document] = static_cast<std::int32_t>(row);
    lengths[document++] = static_cast<std::int32_t>(sequence->rows());
    for (std::int64_t i = 0; i < sequence->rows(); ++i, ++row) {
      tokens[row] = sequence->tokens[static_cast<std::size_t>(i)];
      labels[row] = i + 1 < sequence->context ? -1 : sequence->tokens[static_cast<std::size_t>(i + 1)];
      positions[row] = static_cast<std::int32_t>(i);
    }
  }
  // The rows that are left are one document. Their values are never used, so any position is valid.
  begins[document] = static_cast<std::int32_t>(row);
  lengths[document++] = static_cast<std::int32_t>(rows - row);
  std::fill(begins + document, begins + entries(), static_cast<std::int32_t>(rows));
  std::fill(lengths + document, lengths + entries(), 0);
  std::fill(tokens + row, tokens + rows, 0);
  std::fill(labels + row, labels + rows, -1);
  std::fill(positions + row, positions + rows, 0);
}

void Scorer::enqueue() {
  model_.arena().begin_scope({});
  const std::int64_t rows = sizes_.rows;
  const Tensor values =
      model_.context().empty({static_cast<std::int64_t>(num_values())}, DType::kInt32, "rows of a pass");
  const Tensor losses = model_.context().empty({rows}, DType::kFp32, "token losses");
  copy_from_host(compute(), values.data, host_values_, values.bytes());
  model_.forward({.mode = Mode::kGenerate,
                  .sequences = 1,
                  .seq_length = rows,
                  .tokens = values.slice(0, 0, rows),
                  .labels = values.slice(0, rows, rows),
                  .positions = values.slice(0, 2 * rows, rows),
                  .documents = {{.begin = values.slice(0, 3 * rows, entries()),
                                 .length = values.slice(0, 3 * rows + entries(), entries())},
                                rows},
                  .token_losses = losses});
  copy_to_host(compute(), host_losses_, losses.data, losses.bytes());
}

std::vector<double> Scorer::score(std::span<const ScoredSequence* const> pack) {
  std::int64_t rows = 0;
  for (const ScoredSequence* sequence : pack) {
    require(sequence->context > 0 && sequence->context < std::ssize(sequence->tokens), "Scorer::score: a continuation");
    rows += sequence->rows();
  }
  require(std::ssize(pack) <= sizes_.documents && rows <= sizes_.rows, "Scorer::score: sequences exceed a pass");
  compute().synchronize();  // peers read the weights, and a call that threw may have left work
  fill(pack);
  enqueue();
  compute().synchronize();
  std::vector<double> sums;
  const float* loss = host_losses_;
  for (const ScoredSequence* sequence : pack) {
    double sum = 0;
    for (std::int64_t i = 0; i < sequence->rows(); ++i, ++loss) sum -= static_cast<double>(*loss);
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace megalith

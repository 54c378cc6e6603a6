// Marks of samples (core/data/sample_marks.h) in a step's host memory.
#include <algorithm>
#include <numeric>

#include "apps/run/staging.h"
#include "core/base/error.h"

namespace megalith {

namespace {

constexpr std::int32_t kNoLabel = -1;  // ignored by the loss
constexpr std::int32_t kPadding = -1;  // position of a row that is not a token

}  // namespace

void SampleTokens::add(const SampleMarks& marks, bool separates) {
  trained += std::accumulate(marks.trained.begin(), marks.trained.end(), std::int64_t{0});
  const std::int64_t rows = std::ssize(marks.trained);
  if (!separates) pairs += rows * rows;
  for (const SampleDocument& document : marks.documents) {
    tokens += document.tokens;
    if (separates) pairs += std::int64_t{document.rows} * document.rows;
  }
}

// A microbatch's gradient is a share of the step's: by its trained tokens, or 1 / microbatches of all replicas.
void Staging::set_scales(const StepInput& input, StagedStep& step) const {
  const std::size_t microbatches = input.first_samples.size();
  const auto sequences = static_cast<std::size_t>(config_.sequences);
  const std::int64_t all = std::ssize(input.first_samples) * config_.mesh.dp;
  const std::int64_t rows = all * config_.sequences * config_.seq_length;
  step.of_batch = input.marks.empty()
                      ? SampleTokens{.trained = rows, .tokens = rows, .pairs = rows * config_.seq_length}
                      : input.of_batch;
  step.imbalance = input.imbalance;
  const float scale = 1.0f / static_cast<float>(rows);
  step.loss_scales.assign(microbatches, scale);
  step.router_scales.assign(microbatches, scale);
  for (std::size_t m = 0; m < microbatches && !input.marks.empty(); ++m) {
    SampleTokens own;
    for (const SampleMarks& marks : input.marks.subspan(m * sequences, sequences))
      own.add(marks, config_.documents() > 0);
    const auto trained = static_cast<double>(std::max<std::int64_t>(own.trained, 1));
    const double weight =
        form_.per_token_loss
            ? static_cast<double>(own.trained) / static_cast<double>(std::max<std::int64_t>(input.of_batch.trained, 1))
            : 1.0 / static_cast<double>(all);
    step.loss_scales[m] = static_cast<float>(
        form_.per_token_loss ? 1.0 / static_cast<double>(std::max<std::int64_t>(input.of_batch.trained, 1))
                             : weight / trained);
    step.router_scales[m] = static_cast<float>(weight / static_cast<double>(std::max<std::int64_t>(own.tokens, 1)));
  }
}

// Masks the labels of an unsplit sequence, and writes its positions.
void Staging::write_marks(const SampleMarks& marks, std::vector<std::int32_t>& labels,
                          std::vector<std::int32_t>& positions) const {
  require(marks.trained.size() == labels.size(), "marks of another length than the sample");
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (marks.trained[i] == 0) labels[i] = kNoLabel;
  }
  std::size_t row = 0;
  for (const SampleDocument& document : marks.documents) {
    for (std::int32_t i = 0; i < document.rows; ++i, ++row) {
      const bool is_padding = config_.marks.pads && i >= document.tokens;
      positions[row] = is_padding ? kPadding : config_.marks.restarts_positions ? i : static_cast<std::int32_t>(row);
    }
  }
}

// Writes the documents of each microbatch on this rank, then empty entries at their end.
void Staging::stage_documents(const StepInput& input, StagedStep& step) const {
  const auto sequences = static_cast<std::size_t>(config_.sequences);
  const auto capacity = static_cast<std::size_t>(config_.documents());
  const std::int64_t own_rows = config_.seq_length / form_.sample.ranks;
  std::vector<DocumentExtent> documents;
  for (std::size_t m = 0; m < input.first_samples.size(); ++m) {
    const std::span begins(step.document_begins + m * capacity, capacity);
    const std::span lengths(step.document_lengths + m * capacity, capacity);
    std::size_t at = 0;
    for (std::size_t b = 0; b < sequences; ++b) {
      const auto first_row = static_cast<std::int64_t>(b) * own_rows;
      documents.clear();
      for (const SampleDocument& document : input.marks[m * sequences + b].documents) {
        const std::int64_t begin = documents.empty() ? 0 : documents.back().end;
        documents.push_back({.begin = begin, .end = begin + document.rows});
        const DocumentBlock own = own_part(documents.back(), form_.sample);
        if (own.queries == 0) continue;
        require(at < capacity, "more documents than planned");
        begins[at] = static_cast<std::int32_t>(first_row + own.first_query);
        lengths[at++] = static_cast<std::int32_t>(own.queries);
      }
      stage_shared_documents(documents, static_cast<std::int64_t>(m), static_cast<std::int64_t>(b), step);
    }
    const auto end = static_cast<std::int32_t>(config_.sequences * own_rows);
    std::fill(begins.begin() + static_cast<std::ptrdiff_t>(at), begins.end(), end);
    std::fill(lengths.begin() + static_cast<std::ptrdiff_t>(at), lengths.end(), 0);
  }
}

void Staging::stage_shared_documents(std::span<const DocumentExtent> documents, std::int64_t microbatch,
                                     std::int64_t sequence, StagedStep& step) const {
  const auto [length, rank, ranks] = form_.sample;
  const std::int64_t sequences = config_.sequences, first_row = sequence * length / ranks;
  for (std::int64_t s = 1; s < ranks; ++s) {
    const DocumentBlock block = shared_block(documents, (rank - s + ranks) % ranks, form_.sample);
    std::int32_t* const to = step.shared_documents + ((microbatch * (ranks - 1) + s - 1) * 4 * sequences + sequence);
    const std::int64_t values[] = {first_row + block.first_query, block.queries, first_row + block.first_key,
                                   block.keys};
    for (std::int64_t i = 0; i < 4; ++i) to[i * sequences] = static_cast<std::int32_t>(values[i]);
  }
}

}  // namespace megalith

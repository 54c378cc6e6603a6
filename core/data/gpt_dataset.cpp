#include "core/data/gpt_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/data/numpy_shuffle.h"

namespace megalith {

namespace {

constexpr std::int64_t kMaxEntries = std::numeric_limits<std::uint32_t>::max();

[[noreturn]] void fail_too_many(const char* flags, std::int64_t num_samples) {
  refuse_usage(flags, {.expected = "fewer than 2^32 samples and document visits",
                       .got = counted(num_samples, "sample"),
                       .remedy = "lower the number of samples, or use longer documents"});
}

struct EpochRequest {
  std::int64_t tokens_per_epoch;
  std::int64_t seq_length;
  const char* length_flags;
};

EpochPlan plan_epochs(std::int64_t requested, const EpochRequest& request) {
  const auto [tokens_per_epoch, seq_length, flags] = request;
  EpochPlan plan;
  std::int64_t tokens = 0;  // requested x L + 1, since the last label is one more token
  if (__builtin_mul_overflow(requested, seq_length, &tokens) || __builtin_add_overflow(tokens, 1, &tokens)) {
    fail_too_many(flags, requested);
  }
  plan.num_epochs = std::max<std::int64_t>(1, (tokens - 1) / tokens_per_epoch + 1);
  if (__builtin_mul_overflow(plan.num_epochs, tokens_per_epoch, &tokens)) fail_too_many(flags, requested);
  plan.num_samples = (tokens - 1) / seq_length;
  if (plan.num_epochs == 1) return plan;

  plan.samples_before_last = (tokens - tokens_per_epoch - 1) / seq_length;
  const std::int64_t samples_per_epoch = (tokens_per_epoch - 1) / seq_length;
  const auto threshold = static_cast<std::int64_t>(0.80 * static_cast<double>(samples_per_epoch));
  plan.separate_last_epoch = requested - plan.samples_before_last < threshold;
  return plan;
}

}  // namespace

GptDataset::GptDataset(std::shared_ptr<const IndexedDataset> data, const GptDatasetConfig& config)
    : data_(std::move(data)),
      part_(config.part),
      seq_length_(config.seq_length),
      vocab_size_(config.vocab_size),
      masks_(config.masks),
      length_flags_(config.length_flags) {
  const SequenceRange range = part_.range;
  require(seq_length_ >= 1 && config.num_samples >= 0 && vocab_size_ >= 1, "GptDataset: bad configuration");
  require(0 <= range.begin && range.begin <= range.end && range.end <= data_->num_sequences(), "GptDataset: bad range");
  for (std::int64_t s = range.begin; s < range.end; ++s) {
    require(length_of(s) >= 0, "GptDataset: bad part");
    tokens_per_epoch_ += length_of(s);
  }
  if (tokens_per_epoch_ == 0) {
    refuse_usage("--split",
                 {.expected = fmt::format("a share of the {} of {} with tokens in it",
                                          counted(data_->num_sequences(), "sequence"), data_->prefix()),
                  .got = fmt::format("sequences {} to {} (excluded), which hold none", range.begin, range.end),
                  .remedy = "give the part a larger share, or prepare more and shorter documents"});
  }

  plan_ = plan_epochs(config.num_samples, {tokens_per_epoch_, seq_length_, length_flags_});
  const EpochPlan& plan = plan_;
  const std::int64_t sequences = range.end - range.begin;
  if (plan.num_samples > kMaxEntries || plan.num_epochs > kMaxEntries / sequences ||
      range.end > std::numeric_limits<std::int32_t>::max()) {
    fail_too_many(length_flags_, config.num_samples);
  }

  NumpyRandomState random(config.seed);
  document_index_.resize(static_cast<std::size_t>(plan.num_epochs * sequences));
  for (std::size_t i = 0; i < document_index_.size(); ++i) {
    document_index_[i] = static_cast<std::int32_t>(range.begin + static_cast<std::int64_t>(i) % sequences);
  }
  const std::span<std::int32_t> visits = document_index_;
  const auto first_visits =
      static_cast<std::size_t>((plan.num_epochs - (plan.separate_last_epoch ? 1 : 0)) * sequences);
  random.shuffle(visits.first(first_visits));
  random.shuffle(visits.subspan(first_visits));

  build_sample_index(plan.num_samples);

  shuffle_index_.resize(static_cast<std::size_t>(plan.num_samples));
  std::iota(shuffle_index_.begin(), shuffle_index_.end(), std::uint32_t{0});
  const std::span<std::uint32_t> order = shuffle_index_;
  const auto first_samples =
      static_cast<std::size_t>(plan.separate_last_epoch ? plan.samples_before_last : plan.num_samples);
  random.shuffle(order.first(first_samples));
  random.shuffle(order.subspan(first_samples));
}

std::int64_t GptDataset::length_of(std::int64_t sequence) const {
  return data_->sequence_length(sequence) - (sequence == part_.range.begin ? part_.skipped : 0) -
         (sequence == part_.range.end - 1 ? part_.dropped : 0);
}

bool GptDataset::keeps_order_of(std::int64_t num_samples) const {
  return plan_epochs(num_samples, {tokens_per_epoch_, seq_length_, length_flags_}) == plan_;
}

void GptDataset::build_sample_index(std::int64_t num_samples) {
  sample_index_.resize(static_cast<std::size_t>(num_samples));
  std::size_t position = 0;
  std::int64_t document_at = 0;  // tokens of the stream ahead of document_index_[position]
  // Sample 0 starts at (0, 0) even in an empty document; later samples start at an existing token.
  for (std::int64_t i = 1; i < num_samples; ++i) {
    const std::int64_t start = i * seq_length_;
    std::int64_t length = length_of(document_index_[position]);
    while (document_at + length <= start) {
      document_at += length;
      length = length_of(document_index_[++position]);
    }
    sample_index_[static_cast<std::size_t>(i)] = {.position = static_cast<std::uint32_t>(position),
                                                  .offset = static_cast<std::int32_t>(start - document_at)};
  }
}

void GptDataset::sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const {
  if (!masks_.any()) marks = nullptr;
  require(k >= 0 && k < size(), "GptDataset::sample: no such sample");
  require(std::cmp_equal(tokens.size(), seq_length_ + 1),
          "GptDataset::sample: tokens must have seq_length + 1 elements");
  try {
    read_sample(k, tokens, marks);
  } catch (const Error&) {
    data_->check_unchanged();  // a changed file explains the error
    throw;
  }
  data_->check_unchanged();  // after the read
  if (marks != nullptr) mark_sample(tokens, masks_, *marks);
}

void GptDataset::read_sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const {
  if (marks != nullptr) marks->documents.clear();
  SampleStart at = sample_index_[shuffle_index_[static_cast<std::size_t>(k)]];
  for (std::span<std::int32_t> rest = tokens; !rest.empty(); ++at.position, at.offset = 0) {
    require(at.position < document_index_.size(), "GptDataset::sample: beyond the last document");
    const std::int32_t sequence = document_index_[at.position];
    const std::int64_t available = length_of(sequence) - at.offset;
    require(available >= 0, "GptDataset::sample: beyond the document");
    const std::span<std::int32_t> part = rest.first(std::min(rest.size(), static_cast<std::size_t>(available)));
    const std::int64_t offset = at.offset + (sequence == part_.range.begin ? part_.skipped : 0);
    data_->read(sequence, offset, part);
    const auto bad = std::ranges::find_if(part, [&](std::int32_t id) { return id < 0 || id >= vocab_size_; });
    if (bad != part.end()) {
      refuse_format(
          fmt::format("{}.bin: sequence {}, token {}", data_->prefix(), sequence, offset + (bad - part.begin())),
          fmt::format("a token id below the vocabulary size {}", vocab_size_), std::to_string(*bad),
          "the data was prepared with another tokenizer, or is damaged");
    }
    rest = rest.subspan(part.size());
    // The last token is a label only.
    const auto rows = static_cast<std::int32_t>(part.size()) - (rest.empty() ? 1 : 0);
    if (marks != nullptr && rows > 0) marks->documents.push_back({.rows = rows, .tokens = rows});
  }
}

std::int64_t GptDataset::max_documents() const {
  std::int64_t most = 0;
  for (std::size_t i = 0; i < sample_index_.size(); ++i) {
    const auto end = i + 1 < sample_index_.size() ? sample_index_[i + 1].position : document_index_.size() - 1;
    most = std::max(most, static_cast<std::int64_t>(end) - sample_index_[i].position + 1);
  }
  return most;
}

}  // namespace megalith

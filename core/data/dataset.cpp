#include "core/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/base/counted.h"
#include "core/base/error.h"

namespace megalith {

BlendIndex build_blend_index(std::span<const double> weights, std::int64_t size) {
  require(!weights.empty() && weights.size() < 32767 && size >= 0, "build_blend_index: bad arguments");
  BlendIndex index;
  index.dataset.resize(static_cast<std::size_t>(size));
  index.sample.resize(static_cast<std::size_t>(size));
  std::vector<std::int64_t> drawn(weights.size(), 0);
  for (std::size_t k = 0; k < index.dataset.size(); ++k) {
    const double share_of = std::max(static_cast<double>(k), 1.0);
    // Product and difference are rounded separately, as in Megatron: this folder is compiled without FMA contraction.
    const auto lag = [&](std::size_t d) { return weights[d] * share_of - static_cast<double>(drawn[d]); };
    std::size_t choice = 0;
    double largest = lag(0);
    for (std::size_t d = 1; d < weights.size(); ++d) {
      const double candidate = lag(d);
      if (candidate > largest) {
        largest = candidate;
        choice = d;
      }
    }
    index.dataset[k] = static_cast<std::uint16_t>(choice);
    index.sample[k] = drawn[choice]++;
  }
  return index;
}

std::int64_t samples_of_part(std::int64_t num_samples, double share) {
  const double wanted = std::ceil(static_cast<double>(num_samples) * share);
  return static_cast<std::int64_t>(std::ceil(wanted * (1.0 + 0.005)));
}

std::int64_t size_of(const DatasetPart& part) {
  return std::visit([](const auto& of) { return of.size(); }, part);
}

BlendedDataset::BlendedDataset(std::vector<DatasetPart> parts, std::span<const double> weights, std::int64_t size,
                               std::vector<double> shares)
    : parts_(std::move(parts)), shares_(std::move(shares)), index_(build_blend_index(weights, size)) {
  require(parts_.size() == weights.size() && (shares_.empty() || shares_.size() == parts_.size()),
          "BlendedDataset: one weight per part");
  for (std::size_t k = 0; k < index_.dataset.size(); ++k) {
    if (index_.sample[k] < size_of(parts_[index_.dataset[k]])) continue;
    refuse_usage(fmt::format("--data-path: data set {} of the blend", index_.dataset[k]),
                 {.expected = "more than " + counted(index_.sample[k], "sample"),
                  .got = std::to_string(size_of(parts_[index_.dataset[k]])),
                  .remedy = "change the weights or the number of samples"});
  }
}

void BlendedDataset::check_unchanged() const {
  for (const DatasetPart& part : parts_) std::visit([](const auto& of) { of.check_unchanged(); }, part);
}

bool BlendedDataset::keeps_order_of(std::int64_t num_samples) const {
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const std::int64_t samples = samples_of_part(num_samples, shares_[i]);
    if (!std::visit([&](const auto& of) { return of.keeps_order_of(samples); }, parts_[i])) return false;
  }
  return true;
}

std::int64_t BlendedDataset::max_documents() const {
  std::int64_t most = 0;
  for (const DatasetPart& part : parts_)
    most = std::max(most, std::visit([](const auto& of) { return of.max_documents(); }, part));
  return most;
}

void BlendedDataset::sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const {
  require(k >= 0 && k < size(), "BlendedDataset::sample: no such sample");
  const auto at = static_cast<std::size_t>(k);
  std::visit([&](const auto& of) { of.sample(index_.sample[at], tokens, marks); }, parts_[index_.dataset[at]]);
}

std::int64_t BlendedDataset::squares(std::int64_t k) const {
  const auto at = static_cast<std::size_t>(k);
  return std::visit([&](const auto& of) { return of.squares(index_.sample[at]); }, parts_[index_.dataset[at]]);
}

namespace {

// Mixes 64-bit words bijectively; every input bit reaches every output bit. The function is the finalizer of splitmix64
// (Steele et al. 2014, doi:10.1145/2660193.2660195).
std::uint64_t mixed(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio: spreads consecutive numbers

}  // namespace

MockDataset::MockDataset(const MockDatasetConfig& config) : config_(config) {
  require(config.vocab_size >= 1 && config.vocab_size <= std::numeric_limits<std::int32_t>::max() &&
              config.seq_length >= 1 && config.num_samples >= 0,
          "MockDataset: bad configuration");
  const auto vocab = static_cast<std::size_t>(config.vocab_size);
  double sum = 0.0;
  for (std::size_t r = vocab; r-- > 0;) sum += 1.0 / static_cast<double>(r + 1);  // smallest first

  // Probabilities times vocab, so that a full column weighs 1; a column above 1 fills each column below 1.
  std::vector<double> weight(vocab);
  for (std::size_t r = 0; r < vocab; ++r) {
    weight[r] = static_cast<double>(vocab) / (static_cast<double>(r + 1) * sum);
  }
  columns_.resize(vocab);
  const auto set = [&](std::size_t r, double keep, std::size_t alias) {
    const double scaled = std::clamp(keep, 0.0, 1.0) * 4294967295.0;
    columns_[r] = {.keep = static_cast<std::uint32_t>(scaled), .alias = static_cast<std::int32_t>(alias)};
  };
  std::vector<std::size_t> small;
  std::vector<std::size_t> large;
  for (std::size_t r = 0; r < vocab; ++r) (weight[r] < 1.0 ? small : large).push_back(r);
  while (!small.empty() && !large.empty()) {
    const std::size_t poor = small.back();
    const std::size_t rich = large.back();
    small.pop_back();
    set(poor, weight[poor], rich);
    weight[rich] -= 1.0 - weight[poor];
    if (weight[rich] < 1.0) {
      large.pop_back();
      small.push_back(rich);
    }
  }
  for (const std::size_t r : large) set(r, 1.0, r);
  for (const std::size_t r : small) set(r, 1.0, r);  // 1 except for rounding
}

std::int64_t MockDataset::max_documents() const {
  if (!config_.masks.inter_document_masking) return 0;
  return std::max(config_.seq_length / kMockRowsPerDocument, std::min<std::int64_t>(config_.seq_length, 8));
}

// Lengths of a log-normal distribution, as those of chats; the last document takes the rest of the sample.
void MockDataset::draw_documents(std::uint64_t key, SampleMarks& marks) const {
  constexpr double kMedian = 467, kDeviation = 0.9, kTwoPi = 6.283185307179586;  // mean 700
  constexpr std::int64_t kShortest = 16;
  const double median = std::min(kMedian, static_cast<double>(config_.seq_length) / 8);
  const std::int64_t most = max_documents();
  const auto uniform = [&](std::uint64_t i) { return static_cast<double>(mixed(key + kGolden * i) >> 11) * 0x1p-53; };
  marks.documents.clear();
  for (std::int64_t left = config_.seq_length, i = 0; left > 0; ++i) {
    const auto at = static_cast<std::uint64_t>(2 * i);
    const double normal = std::sqrt(-2 * std::log(1 - uniform(~at))) * std::cos(kTwoPi * uniform(~at - 1));
    const auto drawn = static_cast<std::int64_t>(median * std::exp(kDeviation * normal));
    const std::int64_t rows =
        i + 1 == most ? left : std::min(left, std::max(drawn, std::min(kShortest, config_.seq_length / 16 + 1)));
    marks.documents.push_back({.rows = static_cast<std::int32_t>(rows), .tokens = static_cast<std::int32_t>(rows)});
    left -= rows;
  }
}

void MockDataset::sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const {
  require(k >= 0 && k < size(), "MockDataset::sample: no such sample");
  require(std::cmp_equal(tokens.size(), config_.seq_length + 1),
          "MockDataset::sample: tokens must have seq_length + 1 elements");
  const std::uint64_t key = mixed(mixed(config_.seed + kGolden) + kGolden * static_cast<std::uint64_t>(k + 1));
  const auto vocab = static_cast<std::uint64_t>(config_.vocab_size);
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    const std::uint64_t word = mixed(key + kGolden * (position + 1));
    const std::size_t column = ((word >> 32) * vocab) >> 32;
    const bool keep = static_cast<std::uint32_t>(word) < columns_[column].keep;
    tokens[position] = keep ? static_cast<std::int32_t>(column) : columns_[column].alias;
  }
  if (marks == nullptr || !config_.masks.any()) return;
  if (config_.masks.inter_document_masking) draw_documents(key, *marks);
  mark_sample(tokens, config_.masks, *marks);
}

}  // namespace megalith

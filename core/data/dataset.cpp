#include "core/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "core/base/counted.h"
#include "core/base/error.h"
#include "core/base/text/parse_number.h"

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

BlendedDataset::BlendedDataset(std::vector<GptDataset> parts, std::span<const double> weights, std::int64_t size,
                               std::vector<double> shares)
    : parts_(std::move(parts)), shares_(std::move(shares)), index_(build_blend_index(weights, size)) {
  require(parts_.size() == weights.size() && (shares_.empty() || shares_.size() == parts_.size()),
          "BlendedDataset: one weight per part");
  for (std::size_t k = 0; k < index_.dataset.size(); ++k) {
    if (index_.sample[k] < parts_[index_.dataset[k]].size()) continue;
    refuse_usage(fmt::format("--data-path: data set {} of the blend", index_.dataset[k]),
                 {.expected = "more than " + counted(index_.sample[k], "sample"),
                  .got = std::to_string(parts_[index_.dataset[k]].size()),
                  .remedy = "change the weights or the number of samples"});
  }
}

void BlendedDataset::check_unchanged() const {
  for (const GptDataset& part : parts_) part.check_unchanged();
}

bool BlendedDataset::keeps_order_of(std::int64_t num_samples) const {
  for (std::size_t i = 0; i < shares_.size(); ++i)
    if (!parts_[i].keeps_order_of(samples_of_part(num_samples, shares_[i]))) return false;
  return true;
}

std::int64_t BlendedDataset::max_documents() const {
  std::int64_t most = 0;
  for (const GptDataset& part : parts_) most = std::max(most, part.max_documents());
  return most;
}

void BlendedDataset::sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const {
  require(k >= 0 && k < size(), "BlendedDataset::sample: no such sample");
  const auto at = static_cast<std::size_t>(k);
  parts_[index_.dataset[at]].sample(index_.sample[at], tokens, marks);
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
  DocumentMasks masks = config_.masks;
  masks.reset_position_ids |= masks.inter_document_masking;  // there is no index
  masks.inter_document_masking = false;
  mark_sample(tokens, masks, *marks);
}

namespace {

using IndexedData = std::vector<std::shared_ptr<const IndexedDataset>>;

constexpr std::array<const char*, 3> kSplitNames = {"training", "validation", "test"};

struct Blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // normalized; empty if none are given
};

// Parses pairs WEIGHT PREFIX if the number of entries is even and each first entry is a number, else prefixes.
Blend parse_data_path(const std::vector<std::string>& entries) {
  if (entries.empty())
    refuse_usage("--data-path", {.expected = "at least one prefix", .got = "none", .remedy = "or give --mock-data"});
  std::size_t numbers = 0;
  for (std::size_t i = 0; i < entries.size(); i += 2) numbers += parse_number<double>(entries[i]) ? 1 : 0;
  if (numbers == 0) return {.prefixes = entries};
  if (entries.size() % 2 != 0 || numbers != entries.size() / 2) {
    refuse_usage("--data-path",
                 {.expected = "PREFIX..., or pairs WEIGHT PREFIX",
                  .got = fmt::format("{}, {} of them weights", counted(entries.size(), "entry", "entries"), numbers),
                  .remedy = "give every prefix a weight or none; a prefix that is a number is written ./NUMBER"});
  }
  Blend blend;
  for (std::size_t i = 0; i < entries.size(); i += 2) {
    const double weight = *parse_number<double>(entries[i]);
    if (!std::isfinite(weight) || weight < 0.0) {
      refuse_usage(
          "--data-path",
          {.expected = "weights of at least 0", .got = entries[i], .remedy = "remove the prefix to leave it out"});
    }
    blend.weights.push_back(weight);
    blend.prefixes.push_back(entries[i + 1]);
  }
  if (!std::isfinite(std::accumulate(blend.weights.begin(), blend.weights.end(), 0.0)))
    refuse_usage("--data-path", {.expected = "weights with a finite sum",
                                 .got = "an infinite one",
                                 .remedy = "weights are shares: divide all of them by the same number"});
  if (std::ranges::max(blend.weights) == 0.0)
    refuse_usage("--data-path",
                 {.expected = "a weight above 0", .got = "none", .remedy = "weights are shares of samples"});
  blend.weights = normalized(std::move(blend.weights));
  return blend;
}

std::int64_t tokens_in(const IndexedDataset& data, const SequenceRange& range) {
  std::int64_t tokens = 0;
  for (std::int64_t s = range.begin; s < range.end; ++s) tokens += data.sequence_length(s);
  return tokens;
}

struct PartsOfData {
  std::array<SplitPart, 3> parts;
  std::string note;  // message if the parts are not full sequences
};

// Splits full sequences by --split. If validation has a share but no sequence, it receives that share of training's
// last tokens, at least one sample; it stays empty if training has fewer tokens than two samples. The result depends
// only on the data, --split and --seq-length, so all ranks and resumed runs agree.
PartsOfData parts_of(const IndexedDataset& data, const DataConfig& config) {
  const std::array<SequenceRange, 3> ranges = split_sequences(config.split, data.num_sequences());
  PartsOfData of{.parts = {SplitPart{.range = ranges[0]}, {.range = ranges[1]}, {.range = ranges[2]}}, .note = {}};
  const std::array<double, 3> shares = split_shares(config.split);
  const SequenceRange& all = ranges[0];
  if (shares[1] == 0.0 || ranges[1].begin < ranges[1].end) return of;
  const std::int64_t tokens = tokens_in(data, all), sample = config.seq_length + 1;
  if (tokens < 2 * sample) return of;
  const double wanted = shares[1] / (shares[0] + shares[1]) * static_cast<double>(tokens);
  const std::int64_t tail = std::clamp<std::int64_t>(std::llrint(wanted), sample, tokens - sample);
  std::int64_t first = all.end, left = tail;  // full sequences of the tail, and its tokens ahead of them
  while (left > 0 && data.sequence_length(first - 1) <= left) left -= data.sequence_length(--first);
  of.parts[0] = {.range = {.begin = all.begin, .end = first}, .dropped = left};
  of.parts[1] = {.range = {.begin = left > 0 ? first - 1 : first, .end = all.end},
                 .skipped = left > 0 ? data.sequence_length(first - 1) - left : 0};
  of.note = fmt::format(
      "--split {} gives validation none of the {} of {}: it takes the last {} of training's {} tokens; "
      "--split 1 trains on all",
      config.split, counted(data.num_sequences(), "document"), data.prefix(), tail, tokens);
  return of;
}

GptDataset build_part(const std::shared_ptr<const IndexedDataset>& data, const DataConfig& config, std::size_t split,
                      std::int64_t num_samples) {
  const SplitPart part = parts_of(*data, config).parts[split];
  if (part.range.begin >= part.range.end) {
    const bool has_share = split == 1 && split_shares(config.split)[1] > 0.0;
    refuse_usage("--split",
                 {.expected = fmt::format("a {} share of at least one of the {} of {}", kSplitNames[split],
                                          counted(data->num_sequences(), "document"), data->prefix()),
                  .got = fmt::format("'{}', which gives it none{}", config.split,
                                     has_share ? fmt::format(", and fewer tokens than two samples of {}, of which it "
                                                             "would take the last",
                                                             config.seq_length + 1)
                                               : ""),
                  .remedy = fmt::format(
                      "give it a larger share, or cut the text into more documents (prepare --document-start or "
                      "--document-separator){}",
                      split == 1 ? ", or leave evaluation out with --eval-iters 0" : "")});
  }
  return GptDataset(data, {.part = part,
                           .num_samples = num_samples,
                           .seq_length = config.seq_length,
                           .vocab_size = config.vocab_size,
                           .seed = static_cast<std::uint32_t>(config.seed),
                           .masks = config.masks,
                           .length_flags = split == 0   ? "--train-iters or --train-samples"
                                           : split == 1 ? "--eval-iters and --global-batch-size"
                                                        : "--split"});
}

Dataset build_weighted(const IndexedData& data, const Blend& blend, const DataConfig& config, std::size_t split,
                       std::int64_t num_samples) {
  std::vector<GptDataset> parts;
  std::int64_t size = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    parts.push_back(build_part(data[i], config, split, samples_of_part(num_samples, blend.weights[i])));
    size += static_cast<std::int64_t>(std::ceil(static_cast<double>(num_samples) * blend.weights[i]));
  }
  // Megatron normalizes the weights a second time here, which can change their last bit.
  return Dataset(BlendedDataset(std::move(parts), normalized(blend.weights), size, blend.weights));
}

Dataset build_unweighted(const IndexedData& data, const DataConfig& config, std::size_t split,
                         std::int64_t num_samples) {
  std::vector<GptDataset> parts;
  std::vector<double> sizes;
  std::int64_t size = 0;
  for (const std::shared_ptr<const IndexedDataset>& one : data) {
    parts.push_back(build_part(one, config, split, 0));
    sizes.push_back(static_cast<double>(parts.back().size()));
    size += parts.back().size();
  }
  if (size < num_samples) {
    refuse_usage("--data-path", {.expected = fmt::format(
                                     "{} of {}", counted(num_samples, fmt::format("{} sample", kSplitNames[split])),
                                     counted(config.seq_length, "token")),
                                 .got = fmt::format("{} in one epoch", size),
                                 .remedy = "give each prefix a weight to read several epochs"});
  }
  return Dataset(BlendedDataset(std::move(parts), normalized(std::move(sizes)), num_samples));
}

Dataset build_mock(const DataConfig& config, std::size_t split, std::int64_t num_samples) {
  return Dataset(MockDataset({.seed = static_cast<std::uint64_t>(config.seed) * 3 + split,
                              .vocab_size = config.vocab_size,
                              .seq_length = config.seq_length,
                              .num_samples = num_samples,
                              .masks = config.masks}));
}

void check_tokenizer(const IndexedDataset& data, const std::string& tokenizer) {
  if (tokenizer.empty()) return;
  const std::optional<std::string> recorded = recorded_tokenizer(data);
  if (!recorded || *recorded == tokenizer) return;
  refuse_usage("--data-path " + data.prefix() + ": tokenizer",
               {.expected = *recorded + ", which the data was prepared with",
                .got = tokenizer,
                .remedy = "give the tokenizer's flags that prepare was given, or prepare the data with this one"});
}

void check(const DataConfig& config) {
  if (config.seed < 0 || config.seed > std::numeric_limits<std::uint32_t>::max()) {
    refuse_usage("--seed", {.expected = "0 to 4294967295",
                            .got = std::to_string(config.seed),
                            .remedy = "numpy's generator takes no other"});
  }
  if (config.seq_length < 1 || config.seq_length >= std::numeric_limits<std::int32_t>::max()) {
    refuse_usage("--seq-length",
                 {.expected = "1 to 2147483646", .got = std::to_string(config.seq_length), .remedy = "lower it"});
  }
  if (config.vocab_size < 1 || config.vocab_size > std::numeric_limits<std::int32_t>::max()) {
    refuse_usage("--vocab-size",
                 {.expected = "1 to 2147483647", .got = std::to_string(config.vocab_size), .remedy = "lower it"});
  }
}

}  // namespace

std::vector<std::string> prefixes_of(const std::vector<std::string>& data_path) {
  return parse_data_path(data_path).prefixes;
}

Datasets build_datasets(const DataConfig& config) {
  check(config);
  Blend blend;
  IndexedData data;
  if (!config.mock) {
    blend = parse_data_path(config.data_path);
    for (const std::string& prefix : blend.prefixes) {
      data.push_back(std::make_shared<const IndexedDataset>(IndexedDataset::open(prefix)));
      check_tokenizer(*data.back(), config.tokenizer);
    }
  }
  const auto build = [&](std::size_t split, std::int64_t num_samples) {
    if (num_samples <= 0) return Dataset();
    if (config.mock) return build_mock(config, split, num_samples);
    if (blend.weights.empty() && data.size() > 1) return build_unweighted(data, config, split, num_samples);
    const std::int64_t ordered = split == 0 ? std::max(num_samples, config.order_samples) : num_samples;
    if (!blend.weights.empty()) return build_weighted(data, blend, config, split, ordered);
    return Dataset(build_part(data[0], config, split, ordered));
  };
  Datasets datasets{.train = build(0, config.num_samples.train),
                    .valid = build(1, config.num_samples.valid),
                    .test = build(2, config.num_samples.test)};
  for (const std::shared_ptr<const IndexedDataset>& one : data) {
    std::string note = parts_of(*one, config).note;
    if (!note.empty()) datasets.notes.push_back(std::move(note));
  }
  return datasets;
}

}  // namespace megalith

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
#include "core/data/dataset.h"
#include "core/data/pack_record.h"

namespace megalith {

namespace {

using IndexedData = std::vector<std::shared_ptr<const IndexedDataset>>;

constexpr std::array<const char*, 3> kSplitNames = {"training", "validation", "test"};

struct Blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // normalized; empty if none are given
};

// Parses pairs WEIGHT PREFIX if the number of entries is even and each first entry is a number, else prefixes.
Blend parse_data_path(const std::vector<std::string>& entries, const char* flag = "--data-path") {
  if (entries.empty())
    refuse_usage(flag, {.expected = "at least one prefix", .got = "none", .remedy = "or give --mock-data"});
  std::size_t numbers = 0;
  for (std::size_t i = 0; i < entries.size(); i += 2) numbers += parse_number<double>(entries[i]) ? 1 : 0;
  if (numbers == 0) return {.prefixes = entries};
  if (entries.size() % 2 != 0 || numbers != entries.size() / 2) {
    refuse_usage(flag,
                 {.expected = "PREFIX..., or pairs WEIGHT PREFIX",
                  .got = fmt::format("{}, {} of them weights", counted(entries.size(), "entry", "entries"), numbers),
                  .remedy = "give every prefix a weight or none; a prefix that is a number is written ./NUMBER"});
  }
  Blend blend;
  for (std::size_t i = 0; i < entries.size(); i += 2) {
    const double weight = *parse_number<double>(entries[i]);
    if (!std::isfinite(weight) || weight < 0.0) {
      refuse_usage(
          flag,
          {.expected = "weights of at least 0", .got = entries[i], .remedy = "remove the prefix to leave it out"});
    }
    blend.weights.push_back(weight);
    blend.prefixes.push_back(entries[i + 1]);
  }
  if (!std::isfinite(std::accumulate(blend.weights.begin(), blend.weights.end(), 0.0)))
    refuse_usage(flag, {.expected = "weights with a finite sum",
                        .got = "an infinite one",
                        .remedy = "weights are shares: divide all of them by the same number"});
  if (std::ranges::max(blend.weights) == 0.0)
    refuse_usage(flag, {.expected = "a weight above 0", .got = "none", .remedy = "weights are shares of samples"});
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

void check_tokenizer(const char* flag, const IndexedDataset& data, const std::string& tokenizer) {
  if (tokenizer.empty()) return;
  const std::optional<std::string> recorded = recorded_tokenizer(data);
  if (!recorded || *recorded == tokenizer) return;
  refuse_usage(fmt::format("{} {}: tokenizer", flag, data.prefix()),
               {.expected = *recorded + ", which the data was prepared with",
                .got = tokenizer,
                .remedy = "give the tokenizer's flags that prepare was given, or prepare the data with this one"});
}

// Data of one split, or of all that --split gives a share.
struct Source {
  const char* flag;
  Blend blend;
  IndexedData data;       // by prefix
  bool is_split = false;  // by --split; otherwise the split has all
};

Source open_source(const char* flag, const std::vector<std::string>& paths, bool is_split, const DataConfig& config) {
  Source source{.flag = flag, .blend = parse_data_path(paths, flag), .is_split = is_split};
  for (const std::string& prefix : source.blend.prefixes) {
    const bool is_packed = read_pack_record(prefix).has_value();
    if (is_packed != config.packs) {
      refuse_usage(fmt::format("{} {}", flag, prefix),
                   {.expected = config.packs ? "packs of conversations with --sft" : "documents without --sft",
                    .got = is_packed ? prefix + ".packs, so packs" : fmt::format("no {}.packs", prefix),
                    .remedy = is_packed ? "train --sft reads packs" : "remove --sft, or write packs by prepare --sft"});
    }
    source.data.push_back(std::make_shared<const IndexedDataset>(IndexedDataset::open(prefix)));
    check_tokenizer(flag, *source.data.back(), config.tokenizer);
  }
  return source;
}

[[noreturn]] void refuse_empty_split(const IndexedDataset& data, const DataConfig& config, std::size_t split) {
  const bool has_share = split == 1 && split_shares(config.split)[1] > 0.0;
  refuse_usage(
      "--split",
      {.expected = fmt::format("a {} share of at least one of the {} of {}", kSplitNames[split],
                               counted(data.num_documents(), config.packs ? "pack" : "document"), data.prefix()),
       .got =
           fmt::format("'{}', which gives it none{}", config.split,
                       has_share && !config.packs
                           ? fmt::format(", and fewer tokens than two samples of {}, of which it would take the last",
                                         config.seq_length + 1)
                           : ""),
       .remedy = fmt::format(
           "give it a larger share{}{}",
           config.packs ? ""
                        : ", or cut the text into more documents (prepare --document-start or --document-separator)",
           split == 1 ? ", or leave evaluation out with --eval-iters 0" : "")});
}

// `num_samples` 0: one epoch.
DatasetPart build_packs(const Source& source, std::size_t i, const DataConfig& config, std::size_t split,
                        std::int64_t num_samples) {
  const IndexedDataset& data = *source.data[i];
  PackDatasetConfig packs{.num_samples = num_samples,
                          .seq_length = config.seq_length,
                          .vocab_size = config.vocab_size,
                          .seed = static_cast<std::uint32_t>(config.seed)};
  if (source.is_split) packs.packs = split_sequences(config.split, data.num_documents())[split];
  if (packs.packs && packs.packs->begin >= packs.packs->end) refuse_empty_split(data, config, split);
  return PackDataset(data.prefix(), packs);
}

DatasetPart build_part(const Source& source, std::size_t i, const DataConfig& config, std::size_t split,
                       std::int64_t num_samples) {
  if (config.packs) return build_packs(source, i, config, split, num_samples);
  const std::shared_ptr<const IndexedDataset>& data = source.data[i];
  const SplitPart part = source.is_split ? parts_of(*data, config).parts[split]
                                         : SplitPart{.range = {.begin = 0, .end = data->num_sequences()}};
  if (part.range.begin >= part.range.end) refuse_empty_split(*data, config, split);
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

Dataset build_weighted(const Source& source, const DataConfig& config, std::size_t split, std::int64_t num_samples) {
  std::vector<DatasetPart> parts;
  std::int64_t size = 0;
  const std::vector<double>& weights = source.blend.weights;
  for (std::size_t i = 0; i < source.data.size(); ++i) {
    parts.push_back(build_part(source, i, config, split, samples_of_part(num_samples, weights[i])));
    size += static_cast<std::int64_t>(std::ceil(static_cast<double>(num_samples) * weights[i]));
  }
  // Megatron normalizes the weights a second time here, which can change their last bit.
  return Dataset(BlendedDataset(std::move(parts), normalized(weights), size, weights));
}

// One epoch of each part; `num_samples` kOneEpoch: all of them.
Dataset build_epochs(const Source& source, const DataConfig& config, std::size_t split, std::int64_t num_samples) {
  std::vector<DatasetPart> parts;
  std::vector<double> sizes;
  std::int64_t size = 0;
  for (std::size_t i = 0; i < source.data.size(); ++i) {
    parts.push_back(build_part(source, i, config, split, 0));
    sizes.push_back(static_cast<double>(size_of(parts.back())));
    size += size_of(parts.back());
  }
  if (size < num_samples) {
    refuse_usage(source.flag, {.expected = fmt::format(
                                   "{} of {}", counted(num_samples, fmt::format("{} sample", kSplitNames[split])),
                                   counted(config.seq_length, "token")),
                               .got = fmt::format("{} in one epoch", size),
                               .remedy = "give each prefix a weight to read several epochs"});
  }
  if (num_samples == kOneEpoch) num_samples = size;
  if (num_samples == 0) {
    refuse_usage(source.is_split ? "--split" : source.flag,
                 {.expected = fmt::format("at least one {} sample of {}", kSplitNames[split],
                                          counted(config.seq_length, "token")),
                  .got = "fewer tokens",
                  .remedy = "give more data, or lower --seq-length"});
  }
  return Dataset(BlendedDataset(std::move(parts), normalized(std::move(sizes)), num_samples));
}

bool lacks_test(const Source& source, const DataConfig& config) {
  return std::ranges::any_of(source.data, [&](const std::shared_ptr<const IndexedDataset>& data) {
    const std::int64_t parts = config.packs ? data->num_documents() : data->num_sequences();
    const SequenceRange range = split_sequences(config.split, parts)[2];
    return config.packs ? range.begin >= range.end : tokens_in(*data, range) <= config.seq_length;
  });
}

Dataset build_split(const Source& source, const DataConfig& config, std::size_t split, std::int64_t num_samples) {
  if (num_samples == kOneEpoch || (source.blend.weights.empty() && source.data.size() > 1))
    return build_epochs(source, config, split, num_samples);
  const std::int64_t ordered = split == 0 ? std::max(num_samples, config.order_samples) : num_samples;
  if (!source.blend.weights.empty()) return build_weighted(source, config, split, ordered);
  return std::visit([](auto part) { return Dataset(std::move(part)); }, build_part(source, 0, config, split, ordered));
}

Dataset build_mock(const DataConfig& config, std::size_t split, std::int64_t num_samples) {
  return Dataset(MockDataset({.seed = static_cast<std::uint64_t>(config.seed) * 3 + split,
                              .vocab_size = config.vocab_size,
                              .seq_length = config.seq_length,
                              .num_samples = num_samples,
                              .masks = config.masks}));
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
  constexpr std::array<const char*, 3> kFlags = {"--train-data-path", "--valid-data-path", "--test-data-path"};
  const std::array<std::int64_t, 3> samples = {config.num_samples.train, config.num_samples.valid,
                                               config.num_samples.test};
  const bool has_own_paths = std::ranges::any_of(config.split_paths, [](const auto& paths) { return !paths.empty(); });
  std::optional<Source> shared;
  if (!config.mock && !has_own_paths) shared = open_source("--data-path", config.data_path, true, config);
  const auto build = [&](std::size_t split) {
    if (samples[split] == 0) return Dataset();
    if (config.mock) return build_mock(config, split, samples[split]);
    if (split == 2 && (shared ? lacks_test(*shared, config) : config.split_paths[split].empty())) return Dataset();
    if (shared) return build_split(*shared, config, split, samples[split]);
    return build_split(open_source(kFlags[split], config.split_paths[split], false, config), config, split,
                       samples[split]);
  };
  Datasets datasets{.train = build(0), .valid = build(1), .test = build(2)};
  if (!shared || config.packs) return datasets;
  for (const std::shared_ptr<const IndexedDataset>& one : shared->data) {
    std::string note = parts_of(*one, config).note;
    if (!note.empty()) datasets.notes.push_back(std::move(note));
  }
  return datasets;
}

}  // namespace megalith

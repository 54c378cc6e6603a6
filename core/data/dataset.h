// What training reads samples from, built from plain settings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/data/gpt_dataset.h"
#include "core/data/sampler.h"

namespace megalith {

// Several GPT datasets drawn from in proportion to weights, in Megatron-LM's order: sample k comes from the dataset
// that lags its share most, argmax_d(weight_d max(k, 1) - drawn_d), the lowest d among equals.
struct BlendIndex {
  std::vector<std::uint16_t> dataset;  // of each sample
  std::vector<std::int64_t> sample;    // its number there: the samples drawn from that dataset before
};

// `weights` sum to 1; at most 32766 of them.
BlendIndex build_blend_index(std::span<const double> weights, std::int64_t size);

// Samples that a part with this share is built with for `num_samples` of the blend, 0.5 % to spare as in Megatron-LM.
std::int64_t samples_of_part(std::int64_t num_samples, double share);

class BlendedDataset {
 public:
  BlendedDataset() = default;  // empty
  // Error kUsage when a part has fewer samples than are drawn from it. `shares`: those of samples_of_part, by which the
  // parts were built; empty where they have one epoch each.
  BlendedDataset(std::vector<GptDataset> parts, std::span<const double> weights, std::int64_t size,
                 std::vector<double> shares = {});

  std::int64_t size() const { return static_cast<std::int64_t>(index_.dataset.size()); }
  void sample(std::int64_t k, std::span<std::int32_t> tokens) const;
  void check_unchanged() const;
  bool keeps_order_of(std::int64_t num_samples) const;  // as that of GptDataset

 private:
  std::vector<GptDataset> parts_;
  std::vector<double> shares_;
  BlendIndex index_;
};

// Made-up data for benchmarks (--mock-data): token r has a probability proportional to 1 / (r + 1) (Zipf's law with
// exponent 1, about that of words). A token depends on (seed, sample, position) alone, so every layout, microbatch
// size and sequence length sees the same.
struct MockDatasetConfig {
  std::uint64_t seed = 0;
  std::int64_t vocab_size = 0;  // 1 to 2^31 - 1
  std::int64_t seq_length = 0;
  std::int64_t num_samples = 0;
};

class MockDataset {
 public:
  explicit MockDataset(const MockDatasetConfig& config);

  std::int64_t size() const { return config_.num_samples; }
  void sample(std::int64_t k, std::span<std::int32_t> tokens) const;  // as GptDataset::sample
  void check_unchanged() const {}
  bool keeps_order_of(std::int64_t) const { return true; }

 private:
  // Alias method (Vose 1991, doi:10.1109/32.92917): a uniform column r gives r when a uniform 32-bit number is below
  // `keep`, else `alias`.
  struct Column {
    std::uint32_t keep;
    std::int32_t alias;
  };
  MockDatasetConfig config_;
  std::vector<Column> columns_;
};

// Samples 0 .. size() - 1 of seq_length + 1 tokens; inputs are the first seq_length of them, labels the last. Reading
// is deterministic and may run on many threads at once.
class Dataset {
 public:
  Dataset() = default;  // empty: a blend of nothing
  template <class Kind>
  explicit Dataset(Kind kind) : kind_(std::move(kind)) {}

  std::int64_t size() const {
    return std::visit([](const auto& kind) { return kind.size(); }, kind_);
  }
  void sample(std::int64_t k, std::span<std::int32_t> tokens) const {
    std::visit([&](const auto& kind) { kind.sample(k, tokens); }, kind_);
  }
  // Error kFormat when a file has changed since it was opened; sample() checks those that it reads.
  void check_unchanged() const {
    std::visit([](const auto& kind) { kind.check_unchanged(); }, kind_);
  }
  // Are samples in the order that a data set of `num_samples` has? Over several epochs it depends on their number.
  bool keeps_order_of(std::int64_t num_samples) const {
    return std::visit([&](const auto& kind) { return kind.keeps_order_of(num_samples); }, kind_);
  }

 private:
  std::variant<BlendedDataset, GptDataset, MockDataset> kind_;
};

struct DataConfig {
  std::vector<std::string> data_path;  // PREFIX, PREFIX..., or WEIGHT PREFIX pairs
  std::string split = "969,30,1";
  std::int64_t seed = 1234;  // 0 to 2^32 - 1
  std::int64_t seq_length = 0;
  std::int64_t vocab_size = 0;  // of the tokenizer: ids in the data must be below it
  std::string tokenizer;        // its identity, which that of the data must be where it is recorded; empty: any
  bool mock = false;            // --mock-data; data_path and split are not read
  SplitSamples num_samples;     // wanted of each split; none is built where 0
  // Training has the order for this number of samples where it is larger than what it reads: that of a resumed run.
  std::int64_t order_samples = 0;
};

// The prefixes in `data_path`, without weights; Error kUsage when it is neither form.
std::vector<std::string> prefixes_of(const std::vector<std::string>& data_path);

struct Datasets {
  Dataset train;
  Dataset valid;
  Dataset test;
  std::vector<std::string> notes;  // for the user: prefixes of which validation takes the tail
};

// As Megatron: one prefix alone is read directly; weighted prefixes are blended (each built with 0.5 % to spare);
// several prefixes without weights give one epoch each, blended in proportion to their samples. Beyond Megatron:
// validation takes the tail of the tokens where no document falls to it, see parts_of in dataset.cpp. A split without
// tokens, bad weights, too few samples or data of another tokenizer are an Error kUsage that names the flag.
Datasets build_datasets(const DataConfig& config);

}  // namespace megalith

// Datasets that training reads samples from, built from plain settings.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/data/gpt_dataset.h"
#include "core/data/pack_dataset.h"
#include "core/data/sampler.h"

namespace megalith {

// Order of a blend of GPT datasets in proportion to weights, as in Megatron-LM. Sample k comes from the dataset with
// the largest deficit: argmax_d(weight_d max(k, 1) - drawn_d), the lowest d among equals.
struct BlendIndex {
  std::vector<std::uint16_t> dataset;  // of each sample
  std::vector<std::int64_t> sample;    // index in that dataset: number of earlier samples from it
};

// Computes the order of `size` samples. `weights` sum to 1; at most 32766 weights.
BlendIndex build_blend_index(std::span<const double> weights, std::int64_t size);

// Returns the samples of a part for `num_samples` of the blend: its share plus 0.5 %, as in Megatron-LM.
std::int64_t samples_of_part(std::int64_t num_samples, double share);

using DatasetPart = std::variant<GptDataset, PackDataset>;
std::int64_t size_of(const DatasetPart& part);

class BlendedDataset {
 public:
  BlendedDataset() = default;  // empty
  // Error kUsage if a part has too few samples. `shares` are those of samples_of_part, by which the parts were built;
  // empty if the parts have one epoch each.
  BlendedDataset(std::vector<DatasetPart> parts, std::span<const double> weights, std::int64_t size,
                 std::vector<double> shares = {});

  std::int64_t size() const { return static_cast<std::int64_t>(index_.dataset.size()); }
  void sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const;
  void check_unchanged() const;
  std::int64_t max_documents() const;
  std::int64_t squares(std::int64_t k) const;
  bool keeps_order_of(std::int64_t num_samples) const;  // see GptDataset::keeps_order_of

 private:
  std::vector<DatasetPart> parts_;
  std::vector<double> shares_;
  BlendIndex index_;
};

// Synthetic data for benchmarks (--mock-data): the probability of token r is proportional to 1 / (r + 1). Zipf's law
// with exponent 1 is close to that of words. A token depends only on (seed, sample, position), so every layout,
// microbatch size and sequence length sees equal tokens.
struct MockDatasetConfig {
  std::uint64_t seed = 0;
  std::int64_t vocab_size = 0;  // 1 to 2^31 - 1
  std::int64_t seq_length = 0;
  std::int64_t num_samples = 0;
  DocumentMasks masks;
};

class MockDataset {
 public:
  explicit MockDataset(const MockDatasetConfig& config);

  std::int64_t size() const { return config_.num_samples; }
  // Like GptDataset::sample. With inter_document_masking, documents of long samples have a mean of 700 tokens.
  void sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks = nullptr) const;
  void check_unchanged() const {}
  std::int64_t max_documents() const;
  std::int64_t squares(std::int64_t) const { return 0; }
  bool keeps_order_of(std::int64_t) const { return true; }

 private:
  // Column of the alias method (Vose 1991, doi:10.1109/32.92917). A uniform column r gives r if a uniform 32-bit number
  // is below `keep`, else `alias`.
  struct Column {
    std::uint32_t keep;
    std::int32_t alias;
  };
  static constexpr std::int64_t kMockRowsPerDocument = 256;  // minimum mean in a sample

  void draw_documents(std::uint64_t key, SampleMarks& marks) const;

  MockDatasetConfig config_;
  std::vector<Column> columns_;
};

// Samples 0 .. size() - 1 of seq_length + 1 tokens: inputs are the first seq_length tokens, labels the last.
// Reading is deterministic and thread-safe.
class Dataset {
 public:
  Dataset() = default;  // empty: a blend without datasets
  template <class Kind>
  explicit Dataset(Kind kind) : kind_(std::move(kind)) {}

  std::int64_t size() const {
    return std::visit([](const auto& kind) { return kind.size(); }, kind_);
  }
  // Also fills `marks` if not null and the data are masked.
  void sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks = nullptr) const {
    std::visit([&](const auto& kind) { kind.sample(k, tokens, marks); }, kind_);
  }
  // Maximum number of documents in a sample by the index; 0: unknown.
  std::int64_t max_documents() const {
    return std::visit([](const auto& kind) { return kind.max_documents(); }, kind_);
  }
  // Sum of the squared lengths of a pack's documents, which attention costs; 0 for other samples.
  std::int64_t squares(std::int64_t k) const {
    return std::visit([&](const auto& kind) { return kind.squares(k); }, kind_);
  }
  // Fails with kFormat if a file has changed since it was opened; sample() checks the files that it reads.
  void check_unchanged() const {
    std::visit([](const auto& kind) { kind.check_unchanged(); }, kind_);
  }
  // Returns whether samples have the order of a dataset of `num_samples`; over several epochs the number matters.
  bool keeps_order_of(std::int64_t num_samples) const {
    return std::visit([&](const auto& kind) { return kind.keeps_order_of(num_samples); }, kind_);
  }

 private:
  std::variant<BlendedDataset, GptDataset, PackDataset, MockDataset> kind_;
};

inline constexpr std::int64_t kOneEpoch = -1;  // number of samples: all of one epoch

struct DataConfig {
  std::vector<std::string> data_path;                   // PREFIX, PREFIX..., or WEIGHT PREFIX pairs
  std::array<std::vector<std::string>, 3> split_paths;  // of training, validation and test, instead of data_path
  bool packs = false;                                   // --sft: the prefixes are packs of conversations
  std::string split = "969,30,1";
  std::int64_t seed = 1234;  // 0 to 2^32 - 1
  std::int64_t seq_length = 0;
  std::int64_t vocab_size = 0;  // of the tokenizer: ids in the data must be below it
  std::string tokenizer;        // identity that the data must record, if the data records one; empty: any
  DocumentMasks masks;
  bool mock = false;         // --mock-data; data_path and split are ignored
  SplitSamples num_samples;  // required samples per split; 0: the split is not built; kOneEpoch
  // Minimum number of samples that the training order is built for, from a resumed run.
  std::int64_t order_samples = 0;
};

// Returns the prefixes in `data_path` without weights; Error kUsage for an invalid form.
std::vector<std::string> prefixes_of(const std::vector<std::string>& data_path);

struct Datasets {
  Dataset train;
  Dataset valid;
  Dataset test;
  std::vector<std::string> notes;  // for the user: prefixes with a validation tail
};

// Builds datasets like Megatron: a single prefix directly, weighted prefixes as a blend with 0.5 % spare samples,
// unweighted prefixes with one epoch each, blended by their samples. Validation also receives the tail of the tokens if
// it has no document (parts_of in build_datasets.cpp). Test stays empty without documents. Error kUsage for an empty
// split, bad weights, too few samples or another tokenizer.
Datasets build_datasets(const DataConfig& config);

}  // namespace megalith

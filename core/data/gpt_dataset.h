// Training samples of seq_length + 1 tokens, cut from the documents of an indexed dataset in Megatron-LM's order.
//
// An epoch is every sequence of the range once. The sequences of all epochs are shuffled into one stream (document
// index). Sample i is the tokens [i L, i L + L]; neighbors share one token, since labels are inputs shifted by one.
// Samples are then shuffled (shuffle index). If less than 80 % of the last epoch is needed, both shuffles treat it
// separately. No sequence is then used much more often than another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/data/document_masks.h"
#include "core/data/indexed_dataset.h"
#include "core/data/split.h"

namespace megalith {

// Parameters of the sample order: two numbers of samples with equal plans have one order.
struct EpochPlan {
  std::int64_t num_epochs = 1;
  std::int64_t num_samples = 0;          // in all epochs
  std::int64_t samples_before_last = 0;  // samples without tokens of the last epoch
  bool separate_last_epoch = false;
  friend bool operator==(const EpochPlan&, const EpochPlan&) = default;
};

struct GptDatasetConfig {
  SplitPart part;                // of the indexed dataset
  std::int64_t num_samples = 0;  // minimum; 0: one epoch
  std::int64_t seq_length = 0;   // L >= 1
  std::int64_t vocab_size = 0;   // token ids must be below it
  std::uint32_t seed = 0;
  DocumentMasks masks;
  const char* length_flags = "--train-iters or --train-samples";  // flags that set num_samples
};

// Samples of one part of a dataset. Indices use 4 bytes per sequence and epoch, and 12 bytes per sample.
class GptDataset {
 public:
  // Error kUsage if the range has no tokens or the index exceeds 2^32 - 1 entries.
  GptDataset(std::shared_ptr<const IndexedDataset> data, const GptDatasetConfig& config);

  std::int64_t size() const { return static_cast<std::int64_t>(shuffle_index_.size()); }
  std::int64_t num_epochs() const { return plan_.num_epochs; }
  // Returns whether the samples have the order of `num_samples` samples.
  bool keeps_order_of(std::int64_t num_samples) const;

  // Reads sample k in [0, size()) into seq_length + 1 tokens. Thread-safe. Error kFormat for a token id outside the
  // vocabulary, or if a file has changed since it was opened. A returned sample is from the unchanged files.
  // With masks it also fills `marks`, unless null.
  void sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks = nullptr) const;
  void check_unchanged() const { data_->check_unchanged(); }
  // Maximum number of a sample's documents as the index separates them; an empty one counts too.
  std::int64_t max_documents() const;
  std::int64_t squares(std::int64_t) const { return 0; }  // see Dataset

  // Start of an unshuffled sample: index in the document index, and token in that document.
  struct SampleStart {
    std::uint32_t position;
    std::int32_t offset;
  };
  std::span<const std::int32_t> document_index() const { return document_index_; }
  std::span<const SampleStart> sample_index() const { return sample_index_; }
  std::span<const std::uint32_t> shuffle_index() const { return shuffle_index_; }

 private:
  std::int64_t length_of(std::int64_t sequence) const;  // tokens of the sequence in the part
  void read_sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const;
  void build_sample_index(std::int64_t num_samples);

  std::shared_ptr<const IndexedDataset> data_;
  SplitPart part_;
  std::int64_t seq_length_;
  std::int64_t vocab_size_;
  DocumentMasks masks_;
  const char* length_flags_;
  std::int64_t tokens_per_epoch_ = 0;
  EpochPlan plan_;
  std::vector<std::int32_t> document_index_;
  std::vector<SampleStart> sample_index_;
  std::vector<std::uint32_t> shuffle_index_;
};

}  // namespace megalith

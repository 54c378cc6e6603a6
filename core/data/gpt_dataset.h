// Training samples of seq_length + 1 tokens, cut from the documents of an indexed dataset in Megatron-LM's order.
//
// An epoch is every sequence of the range once. The sequences of all epochs are shuffled together into one stream
// (document index), of which sample i is the tokens [i L, i L + L]: neighbours share one token, for inputs and labels
// are one apart. The samples are then shuffled (shuffle index). When less than 80 % of the last epoch is needed, it is
// shuffled apart in both, so that no sequence is seen much more often than another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/data/indexed_dataset.h"
#include "core/data/split.h"

namespace megalith {

// What the order of samples follows from: two numbers of samples with equal plans have one order.
struct EpochPlan {
  std::int64_t num_epochs = 1;
  std::int64_t num_samples = 0;          // in all epochs
  std::int64_t samples_before_last = 0;  // those that the last epoch has no part in
  bool separate_last_epoch = false;
  friend bool operator==(const EpochPlan&, const EpochPlan&) = default;
};

struct GptDatasetConfig {
  SplitPart part;                // of the indexed dataset
  std::int64_t num_samples = 0;  // at least so many; 0: one epoch
  std::int64_t seq_length = 0;   // L >= 1
  std::int64_t vocab_size = 0;   // token ids must be below it
  std::uint32_t seed = 0;
  const char* length_flags = "--train-iters or --train-samples";  // which set num_samples
};

// The indices live in memory: 4 bytes per sequence and epoch, 12 bytes per sample.
class GptDataset {
 public:
  // Error kUsage when the range holds no token or the index would have more than 2^32 - 1 entries.
  GptDataset(std::shared_ptr<const IndexedDataset> data, const GptDatasetConfig& config);

  std::int64_t size() const { return static_cast<std::int64_t>(shuffle_index_.size()); }
  std::int64_t num_epochs() const { return plan_.num_epochs; }
  // Is the order of samples the one that `num_samples` has?
  bool keeps_order_of(std::int64_t num_samples) const;

  // Sample k in [0, size()) into seq_length + 1 tokens. May run on many threads at once. A token id that the model
  // does not have is an Error kFormat, and so are files that have changed since they were opened: a sample that is
  // given was read from what they were.
  void sample(std::int64_t k, std::span<std::int32_t> tokens) const;
  void check_unchanged() const { data_->check_unchanged(); }

  // Where an unshuffled sample starts: place in the document index, and token in that document.
  struct SampleStart {
    std::uint32_t position;
    std::int32_t offset;
  };
  std::span<const std::int32_t> document_index() const { return document_index_; }
  std::span<const SampleStart> sample_index() const { return sample_index_; }
  std::span<const std::uint32_t> shuffle_index() const { return shuffle_index_; }

 private:
  std::int64_t length_of(std::int64_t sequence) const;  // its tokens that are in the part
  void read_sample(std::int64_t k, std::span<std::int32_t> tokens) const;
  void build_sample_index(std::int64_t num_samples);

  std::shared_ptr<const IndexedDataset> data_;
  SplitPart part_;
  std::int64_t seq_length_;
  std::int64_t vocab_size_;
  const char* length_flags_;
  std::int64_t tokens_per_epoch_ = 0;
  EpochPlan plan_;
  std::vector<std::int32_t> document_index_;
  std::vector<SampleStart> sample_index_;
  std::vector<std::uint32_t> shuffle_index_;
};

}  // namespace megalith

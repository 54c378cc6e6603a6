// Training samples that are packs of conversations (pack_record.h). Sample k is a pack: its conversations in order,
// each padded to the recorded multiple, then padding up to S rows.
//
// An epoch is every pack once, in an order shuffled for each epoch by one numpy.random.RandomState(seed). Sample k thus
// depends only on the files, the seed and k.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/data/indexed_dataset.h"
#include "core/data/pack_record.h"
#include "core/data/sample_marks.h"
#include "core/data/split.h"

namespace megalith {

struct PackDatasetConfig {
  std::int64_t num_samples = 0;  // 0: one epoch
  std::int64_t seq_length = 0;   // S >= the recorded one, below 2^31 - 1
  std::int64_t vocab_size = 0;   // token ids must be below it
  std::uint32_t seed = 0;
  std::optional<SequenceRange> packs;  // range of packs, such as a split; none: all
};

// Indices use 4 bytes per sample.
class PackDataset {
 public:
  // Checks the files against each other and the record: Error kFormat for a mismatch. Error kUsage for an empty range,
  // or a shorter S than recorded.
  PackDataset(const std::string& prefix, const PackDatasetConfig& config);

  std::int64_t size() const { return static_cast<std::int64_t>(order_.size()); }
  const PackRecord& record() const { return record_; }
  std::int64_t max_documents() const { return max_documents_; }  // of any pack, plus one for padding

  // Reads sample k in [0, size()) into S + 1 tokens. Padding has token 0. Thread-safe. Error kFormat for a token id
  // outside the vocabulary, or if a file has changed since it was opened. A returned sample is from the unchanged
  // files.
  void sample(std::int64_t k, std::span<std::int32_t> tokens, SampleMarks* marks) const;  // marks: not null

  // Sum of the squared tokens of the documents of sample k, from the index alone.
  std::int64_t squares(std::int64_t k) const;

  void check_unchanged() const;
  bool keeps_order_of(std::int64_t) const { return true; }  // more samples only add to the order

 private:
  void check_length() const;
  void check_files();
  void build_order(const PackDatasetConfig& config);
  std::int64_t pack_of(std::int64_t k) const;
  void read_pack(std::int64_t pack, std::span<std::int32_t> tokens, SampleMarks& marks) const;
  void read_document(std::int64_t sequence, std::span<std::int32_t> tokens, std::span<std::uint8_t> trained) const;

  PackRecord record_;
  std::shared_ptr<const IndexedDataset> tokens_;
  std::shared_ptr<const IndexedDataset> mask_;
  std::int64_t seq_length_;
  std::int64_t vocab_size_;
  std::int64_t max_documents_ = 0;
  std::vector<std::uint32_t> order_;  // pack of each sample
};

}  // namespace megalith

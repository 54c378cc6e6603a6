// Made-up data for benchmarks (--mock-data): token r has a probability proportional to 1 / (r + 1) (Zipf's law with
// exponent 1, about that of words). A token depends on (seed, sample, position) alone, so every layout, microbatch
// size and sequence length sees the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace megalith {

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

}  // namespace megalith

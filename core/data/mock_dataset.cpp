#include "core/data/mock_dataset.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.h"

namespace megalith {

namespace {

// A bijection of 64-bit words in which every input bit reaches every output bit (splitmix64's finaliser, Steele et al.
// 2014, doi:10.1145/2660193.2660195).
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

  // Probabilities times vocab, so that a full column weighs 1; each column below is filled up from one above.
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
  for (const std::size_t r : small) set(r, 1.0, r);  // 1 but for rounding
}

void MockDataset::sample(std::int64_t k, std::span<std::int32_t> tokens) const {
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
}

}  // namespace megalith

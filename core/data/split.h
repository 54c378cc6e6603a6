// Split of a dataset's sequences into training, validation and test (Megatron's --split).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

struct SequenceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;  // one past the last
  friend bool operator==(const SequenceRange&, const SequenceRange&) = default;
};

// Tokens of a split: a range of sequences without the first `skipped` tokens and the last `dropped` tokens.
struct SplitPart {
  SequenceRange range;
  std::int64_t skipped = 0;
  std::int64_t dropped = 0;
  friend bool operator==(const SplitPart&, const SplitPart&) = default;
};

// Splits by up to three weights, such as "969,30,1"; missing weights are 0. Ranges are consecutive and cover all
// sequences. Their borders are the cumulative fractions times `num_sequences`, rounded with ties to even. An invalid
// text is an Error kUsage.
std::array<SequenceRange, 3> split_sequences(const std::string& split, std::int64_t num_sequences);

// Returns the shares of the three splits, which sum to 1.
std::array<double, 3> split_shares(const std::string& split);

// Returns weights / numpy.sum(weights), with numpy's order of additions, which determines the last bit.
std::vector<double> normalized(std::vector<double> weights);

}  // namespace megalith

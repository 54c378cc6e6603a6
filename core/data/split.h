// Which sequences of a dataset belong to training, validation and test (Megatron's --split).
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

// The part of the tokens that a split has: a range of sequences, without the first tokens of its first sequence and the
// last ones of its last.
struct SplitPart {
  SequenceRange range;
  std::int64_t skipped = 0;
  std::int64_t dropped = 0;
  friend bool operator==(const SplitPart&, const SplitPart&) = default;
};

// `split` is up to three weights, as "969,30,1"; missing ones are 0. Ranges follow each other and cover all
// sequences; their borders are the cumulative fractions times `num_sequences`, rounded with ties to even. A text that
// is no such list is an Error kUsage.
std::array<SequenceRange, 3> split_sequences(const std::string& split, std::int64_t num_sequences);

// The shares of the three splits, which sum to 1.
std::array<double, 3> split_shares(const std::string& split);

// weights / numpy.sum(weights), with numpy's order of additions, on which the last bit depends.
std::vector<double> normalized(std::vector<double> weights);

}  // namespace megalith

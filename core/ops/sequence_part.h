// Positions of a sample's rows if several ranks split a sequence: two runs of equal length. Row r of n is at position
// first + r, plus gap from row n / 2 on. The default is an unsharded sequence, or its beginning. Of 2 C equal chunks
// rank r of C has r and 2 C - 1 - r, as in Megatron-LM's context parallelism. A causal mask then gives all ranks
// equally many pairs of query and key (Brandon et al. 2023, arXiv:2311.09431).
#pragma once

#include <cstdint>
#include <source_location>
#include <string_view>

namespace megalith {

struct SequencePart {
  std::int64_t first = 0;  // not negative
  std::int64_t gap = 0;    // positions between the runs, not negative; if not 0, the number of rows is even

  constexpr std::int64_t position(std::int64_t row, std::int64_t rows) const {
    return first + row + (row >= rows / 2 ? gap : 0);
  }
};

// Checks that positions of `rows` rows are not negative, and that two runs have an even number of rows.
void check_part(const SequencePart& part, std::int64_t rows, std::string_view name,
                std::source_location place = std::source_location::current());

// Returns the part of rank `rank` of `ranks`. `length` is a multiple of 2 `ranks` if there are several.
constexpr SequencePart part_of_sequence(std::int64_t length, std::int64_t rank, std::int64_t ranks) {
  if (ranks == 1) return {};
  const std::int64_t chunk = length / (2 * ranks);
  return {.first = rank * chunk, .gap = 2 * (ranks - 1 - rank) * chunk};
}

}  // namespace megalith

// Which positions of a sequence the rows of a sample stand at where several ranks share it: two runs of equal length.
// Row r of a sample's n rows is at first + r, and gap farther from row n / 2 on. The default is a whole sequence, or
// its beginning. Of 2 C equal chunks rank r of C has r and 2 C - 1 - r, as in Megatron-LM's context parallelism: a
// causal mask then leaves all ranks as many pairs of a query and a key (Brandon et al. 2023, arXiv:2311.09431, on why).
#pragma once

#include <cstdint>
#include <source_location>
#include <string_view>

namespace megalith {

struct SequencePart {
  std::int64_t first = 0;  // not negative
  std::int64_t gap = 0;    // positions between the runs, not negative; not 0: the number of rows is even

  constexpr std::int64_t position(std::int64_t row, std::int64_t rows) const {
    return first + row + (row >= rows / 2 ? gap : 0);
  }
};

// Positions of `rows` rows that are not negative; an even number of rows where they are two runs.
void check_part(const SequencePart& part, std::int64_t rows, std::string_view name,
                std::source_location place = std::source_location::current());

// Rank `rank` of `ranks` of a sequence of `length` positions, a multiple of 2 `ranks` where there are several.
constexpr SequencePart part_of_sequence(std::int64_t length, std::int64_t rank, std::int64_t ranks) {
  if (ranks == 1) return {};
  const std::int64_t chunk = length / (2 * ranks);
  return {.first = rank * chunk, .gap = 2 * (ranks - 1 - rank) * chunk};
}

}  // namespace megalith

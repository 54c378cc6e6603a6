// Marks of a packed sample: which predictions count, and which rows belong together.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith {

// Rows of a sample that attend only among themselves. The first `tokens` of them are tokens, the others padding.
struct SampleDocument {
  std::int32_t rows = 0;
  std::int32_t tokens = 0;
  friend bool operator==(const SampleDocument&, const SampleDocument&) = default;
};

struct SampleMarks {
  std::vector<std::uint8_t> trained;      // of each row i: 1 if the loss of predicting tokens[i + 1] there counts
  std::vector<SampleDocument> documents;  // in order, over all rows; the last may be padding alone, with 0 tokens
};

}  // namespace megalith

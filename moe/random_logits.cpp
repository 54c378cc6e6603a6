#include "moe/random_logits.h"

#include <algorithm>

#include "core/ops/elementwise/fill_normal.h"
#include "core/ops/op.h"

namespace megalith {

namespace {

// Offset between sequences, above the maximum count of a sequence: 10^9 positions and 10^4 experts.
constexpr std::int64_t kNumbersOfSequence = std::int64_t{1} << 44;

}  // namespace

void draw_logits(Stream& stream, const Tensor& logits, const NormalNumbers& numbers, const RowsOfSequences& rows) {
  const std::int64_t experts = logits.size(1), length = rows.seq_length;
  const std::int64_t run = rows.part.gap == 0 ? length : length / 2;  // rows with consecutive positions
  for (std::int64_t row = 0; row < logits.size(0);) {
    const std::int64_t whole = rows.first + row;
    const std::int64_t count = std::min(run - whole % run, logits.size(0) - row);
    NormalNumbers of_run = numbers;
    of_run.offset = whole / length * kNumbersOfSequence + rows.part.position(whole % length, length) * experts;
    launch(stream, FillNormal{.x = logits.slice(0, row, count), .numbers = of_run, .pitch = experts});
    row += count;
  }
}

}  // namespace megalith

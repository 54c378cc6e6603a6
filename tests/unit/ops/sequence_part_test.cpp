// Ops that depend on positions, on a part of a sequence: the bits of the full sequence's rows.
#include "core/ops/sequence_part.h"

#include "core/ops/attention/rope.h"
#include "core/ops/elementwise/dropout.h"
#include "core/ops/token/embedding.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

constexpr std::int64_t kSamples = 2, kLength = 36;

class SequencePartTest : public OpTest {
 protected:
  // Rows of [B * S, columns] values that rank `rank` of three holds.
  static Values part_of(const Values& whole, std::int64_t columns, std::int64_t rank) {
    const std::int64_t rows = kLength / 3;
    const SequencePart part = part_of_sequence(kLength, rank, 3);
    Values values;
    for (std::int64_t b = 0; b < kSamples; ++b) {
      for (std::int64_t s = 0; s < rows; ++s) {
        const auto at = whole.begin() + (b * kLength + part.position(s, rows)) * columns;
        values.insert(values.end(), at, at + columns);
      }
    }
    return values;
  }
};
MEGALITH_OP_TESTS(SequencePartTest);

TEST_P(SequencePartTest, RotatesByThePositionsOfTheWhole) {
  const std::int64_t heads = 2, dim = 6;
  for (const bool backward : {false, true}) {
    const Tensor x = input({kSamples, kLength, heads, dim}), y = output(x.shape);
    run(Rope{.x = x, .y = y, .rotary_dim = 4, .backward = backward});
    const Values whole = values(y);  // the next run starts all outputs afresh
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      const Tensor mine = input({kSamples, kLength / 3, heads, dim}, dtype(), part_of(values(x), heads * dim, rank));
      const Tensor turned = output(mine.shape);
      const SequencePart part = part_of_sequence(kLength, rank, 3);
      run(Rope{.x = mine, .y = turned, .rotary_dim = 4, .backward = backward, .part = part});
      EXPECT_EQ(values(turned), part_of(whole, heads * dim, rank)) << rank;
    }
  }
}

TEST_P(SequencePartTest, DropsWhatTheWholeDrops) {
  const std::int64_t columns = 40;
  const auto* parameters = device_struct(MicrobatchParameters{.iteration = 3, .first_sample = 5});
  const Tensor x = input({kSamples * kLength, columns}), y = output(x.shape);
  Dropout op{.x = x, .y = y, .p = 0.4f, .seed = 9, .rows_per_sample = kLength, .parameters = parameters};
  run(op);
  const Values whole = values(y);
  op.rows_per_sample = kLength / 3;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    op.x = input({kSamples * kLength / 3, columns}, dtype(), part_of(values(x), columns, rank));
    op.y = output(op.x.shape);
    op.part = part_of_sequence(kLength, rank, 3);
    run(op);
    EXPECT_EQ(values(op.y), part_of(whole, columns, rank)) << rank;
  }
  op.part = {.first = -1};
  expect_refused(op, "op.part: expected positions that are not negative");
  op.rows_per_sample = 3, op.part = {.gap = 4};
  expect_refused(op, "an even number of rows with a gap");
}

TEST_P(SequencePartTest, LooksUpAndAddsThePositionsOfTheWhole) {
  const std::int64_t columns = 9, vocabulary = 5;
  Values ids;
  for (std::int64_t i = 0; i < kSamples * kLength; ++i) ids.push_back(static_cast<double>(i * i % vocabulary));
  const Tensor tokens = input({kSamples * kLength}, DType::kInt32, ids);
  const Tensor table = input({vocabulary, columns}), positions = input({kLength, columns});
  const Tensor y = output({kSamples * kLength, columns}), dy = input(y.shape);
  run(EmbeddingForward{.tokens = tokens, .table = table, .positions = positions, .rows_per_sample = kLength, .y = y});
  const Values whole = values(y);  // the next run starts all outputs afresh
  const Values none(static_cast<std::size_t>(vocabulary * columns)), no_positions(kLength * columns);
  const Tensor d_positions = inout({kLength, columns}, DType::kFp32, no_positions);
  run(EmbeddingBackward{.tokens = tokens,
                        .dy = dy,
                        .d_table = inout(table.shape, DType::kFp32, none),
                        .d_positions = d_positions,
                        .rows_per_sample = kLength});
  const Values whole_gradient = values(d_positions);
  Values sum = no_positions;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const SequencePart part = part_of_sequence(kLength, rank, 3);
    const Tensor mine = input({kSamples * kLength / 3}, DType::kInt32, part_of(ids, 1, rank));
    const Tensor looked_up = output({mine.size(0), columns});
    run(EmbeddingForward{.tokens = mine,
                         .table = table,
                         .positions = positions,
                         .rows_per_sample = kLength / 3,
                         .part = part,
                         .y = looked_up});
    EXPECT_EQ(values(looked_up), part_of(whole, columns, rank)) << rank;
    const Tensor d_part = inout({kLength, columns}, DType::kFp32, no_positions);
    run(EmbeddingBackward{.tokens = mine,
                          .dy = input(looked_up.shape, dtype(), part_of(values(dy), columns, rank)),
                          .d_table = inout(table.shape, DType::kFp32, none),
                          .d_positions = d_part,
                          .rows_per_sample = kLength / 3,
                          .part = part});
    const Values added = values(d_part);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
  }
  EXPECT_EQ(sum, whole_gradient);  // each position is one rank's
  const Tensor few = input({kLength - 1, columns});
  expect_kernel_error(EmbeddingForward{.tokens = input({kSamples * kLength / 3}, DType::kInt32, part_of(ids, 1, 0)),
                                       .table = table,
                                       .positions = few,
                                       .rows_per_sample = kLength / 3,
                                       .part = part_of_sequence(kLength, 0, 3),
                                       .y = output({kSamples * kLength / 3, columns})},
                      ExitCode::kUsage, "35");
}

}  // namespace
}  // namespace megalith::test

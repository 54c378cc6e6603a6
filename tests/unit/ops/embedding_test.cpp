#include "core/ops/token/embedding.h"

#include "tests/reference/embedding.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class EmbeddingTest : public OpTest {
 protected:
  Values random_tokens(std::int64_t count, std::int32_t vocabulary) {
    std::uniform_int_distribution<std::int32_t> distribution(0, vocabulary - 1);
    Values tokens;
    for (std::int64_t i = 0; i < count; ++i) tokens.push_back(distribution(random()));
    return tokens;
  }
  std::int32_t* start_at(std::int32_t position) { return device_struct(position); }
};
MEGALITH_OP_TESTS(EmbeddingTest);

TEST_P(EmbeddingTest, Forward) {
  for (const std::int64_t samples : {0, 1, 3}) {
    for (const std::int64_t columns : {1, 8, 37}) {
      for (const bool positions : {false, true}) {
        for (const std::int32_t start : {0, 2}) {
          const std::int64_t rows = samples * 4;
          const Values ids = random_tokens(rows, 11);
          const Tensor tokens = input({rows}, DType::kInt32, ids), table = input({11, columns});
          const Tensor learned = input({6, columns}), y = output({rows, columns});
          run(EmbeddingForward{.tokens = tokens,
                               .table = table,
                               .positions = positions ? learned : Tensor(),
                               .rows_per_sample = 4,
                               .start = start == 0 ? nullptr : start_at(start),
                               .y = y});
          expect_close(y, reference::embedding(ids, values(table), values(learned),
                                               {.vocabulary = 11,
                                                .positions = positions ? 6u : 0u,
                                                .columns = static_cast<std::size_t>(columns),
                                                .rows_per_sample = 4,
                                                .start = static_cast<std::size_t>(start)}));
        }
      }
    }
  }
}

TEST_P(EmbeddingTest, BackwardAddsToTheGradients) {
  for (const std::int64_t samples : {0, 1, 5, 61}) {
    for (const std::int64_t columns : {1, 8, 37, 64}) {
      const DType type = samples % 2 == 0 ? DType::kFp32 : dtype();  // dtype of the gradients
      const std::int64_t rows = samples * 4;
      const auto width = static_cast<std::size_t>(columns);
      const Values ids = random_tokens(rows, 3);  // few tokens, so that rows meet
      const Tensor tokens = input({rows}, DType::kInt32, ids), dy = input({rows, columns});
      const Tensor d_table = inout({5, columns}, type, normal(5 * columns));
      const Tensor d_positions = inout({6, columns}, type, normal(6 * columns));
      Values want_table = values(d_table), want_positions = values(d_positions);
      Values size_table(want_table.size()), size_positions(want_positions.size());
      Values absolute = values(dy);
      for (double& v : absolute) v = std::abs(v);
      const auto token = [&](std::size_t row) { return static_cast<std::size_t>(ids[row]); };
      const auto position = [](std::size_t row) { return row % 4; };
      const auto add = [](Values& to, const Values& from) {
        for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
      };
      for (std::size_t i = 0; i < want_table.size(); ++i) size_table[i] = std::abs(want_table[i]);
      for (std::size_t i = 0; i < want_positions.size(); ++i) size_positions[i] = std::abs(want_positions[i]);
      add(want_table, reference::sum_rows_by(values(dy), width, 5, token));
      add(want_positions, reference::sum_rows_by(values(dy), width, 6, position));
      add(size_table, reference::sum_rows_by(absolute, width, 5, token));
      add(size_positions, reference::sum_rows_by(absolute, width, 6, position));

      EmbeddingBackward op{
          .tokens = tokens, .dy = dy, .d_table = d_table, .d_positions = d_positions, .rows_per_sample = 4};
      const auto unchanged = [&](const Tensor& sum) { return rows == 0 ? Idles{{sum, "no rows are added"}} : Idles{}; };
      Idles both = unchanged(d_table);
      for (const Idle& one : unchanged(d_positions)) both.push_back(one);
      run(op, both);
      expect_close(d_table, want_table, {.length = rows + 1, .magnitude = size_table, .what = "d_table"});
      expect_close(d_positions, want_positions,
                   {.length = samples + 1, .magnitude = size_positions, .what = "d_positions"});
      op.d_positions = Tensor();
      run(op, unchanged(d_table));
      expect_close(d_table, want_table, {.length = rows + 1, .magnitude = size_table, .what = "d_table alone"});
      expect_untouched(d_positions);
    }
  }
}

TEST_P(EmbeddingTest, APartOfTheTableHasRowsForItsTokensOnly) {
  const Values ids = {4, 0, 6, 4, 3, 10};
  const Tensor tokens = input({6}, DType::kInt32, ids), table = input({4, 9}), positions = input({6, 9});
  for (const bool learned : {false, true}) {
    const Tensor y = output({6, 9});
    run(EmbeddingForward{.tokens = tokens,
                         .table = table,
                         .positions = learned ? positions : Tensor(),
                         .first_token = 3,
                         .vocabulary = 11,
                         .rows_per_sample = 6,
                         .y = y});
    Values want;
    for (std::size_t row = 0; row < ids.size(); ++row) {
      const bool here = ids[row] >= 3 && ids[row] < 7;
      for (std::size_t c = 0; c < 9; ++c) {
        want.push_back((here ? values(table)[static_cast<std::size_t>(ids[row] - 3) * 9 + c] : 0) +
                       (learned ? values(positions)[row * 9 + c] : 0));
      }
    }
    expect_close(y, want);
  }
  const Tensor dy = input({6, 9});
  for (const DType type : {DType::kFp32, dtype()}) {
    const Tensor d_table = inout({4, 9}, type, Values(36, 0.0));
    run(EmbeddingBackward{.tokens = tokens, .dy = dy, .d_table = d_table, .first_token = 3, .vocabulary = 11});
    Values want(36, 0.0), size(36, 0.0);
    for (std::size_t row = 0; row < ids.size(); ++row) {
      if (ids[row] < 3 || ids[row] >= 7) continue;
      for (std::size_t c = 0; c < 9; ++c) {
        want[static_cast<std::size_t>(ids[row] - 3) * 9 + c] += values(dy)[row * 9 + c];
        size[static_cast<std::size_t>(ids[row] - 3) * 9 + c] += std::abs(values(dy)[row * 9 + c]);
      }
    }
    expect_close(d_table, want, {.length = 2, .magnitude = size});
  }
  const Tensor y = output({6, 9});
  expect_kernel_error(EmbeddingForward{.tokens = tokens, .table = table, .first_token = 3, .vocabulary = 10, .y = y},
                      ExitCode::kFormat, "token of row 5: expected 0 to 9, got 10");
  expect_refused(EmbeddingForward{.tokens = tokens, .table = table, .first_token = 3, .vocabulary = 6, .y = y},
                 "op.first_token and op.vocabulary: expected a range of 4 tokens inside of the vocabulary, got 3 of 6");
}

TEST_P(EmbeddingTest, BadTokensAndPositionsAreNamed) {
  const Tensor table = input({5, 8}), positions = input({3, 8}), y = output({4, 8}), dy = input({4, 8});
  const Tensor d_table = inout({5, 8}, DType::kFp32, normal(40));
  for (const double bad : {-1.0, 5.0}) {
    const Tensor tokens = input({4}, DType::kInt32, {0, 4, bad, 1});
    const std::string got = "token of row 2: expected 0 to 4, got " + std::to_string(static_cast<int>(bad));
    expect_kernel_error(EmbeddingForward{.tokens = tokens, .table = table, .y = y}, ExitCode::kFormat, got);
    expect_untouched(y);
    expect_kernel_error(EmbeddingBackward{.tokens = tokens, .dy = dy, .d_table = d_table}, ExitCode::kFormat, got);
    expect_untouched(d_table);
  }
  const Tensor tokens = input({4}, DType::kInt32, {0, 4, 2, 1});
  EmbeddingForward op{.tokens = tokens, .table = table, .positions = positions, .rows_per_sample = 4, .y = y};
  expect_kernel_error(op, ExitCode::kUsage, "positions: expected 0 to 2, got 0 to 3");
  op.rows_per_sample = 2, op.start = start_at(2);
  expect_kernel_error(op, ExitCode::kUsage, "got 2 to 3");
}

TEST_P(EmbeddingTest, Refusals) {
  const Tensor tokens = input({4}, DType::kInt32, {0, 1, 2, 3}), table = input({5, 8}), y = output({4, 8});
  expect_refused(EmbeddingForward{.tokens = tokens, .table = table, .rows_per_sample = 0, .y = y},
                 "op.rows_per_sample");
  expect_refused(
      EmbeddingBackward{.tokens = tokens, .dy = input({4, 8}, DType::kFp32), .d_table = output({5, 8}, DType::kBf16)},
      "op.dy: expected dtype bf16, got fp32");
}

// Four rows of a table of 100 are moved.
TEST(EmbeddingCost, IsThatOfTheRowsOfItsTokens) {
  std::vector<std::int32_t> tokens(4);
  std::vector<float> table(100 * 8), positions(50 * 8), y(4 * 8);
  const auto floats = [](std::vector<float>& of, std::int64_t rows) {
    return Tensor(of.data(), DType::kFp32, {rows, 8});
  };
  const Tensor ids(tokens.data(), DType::kInt32, {4});
  const std::size_t rows = sizeof(float) * 4 * 8;
  const auto moved = [](const auto& op) {
    Access what("");
    access(op, what);
    return what.moved_bytes();
  };
  EXPECT_EQ(moved(EmbeddingForward{.tokens = ids,
                                   .table = floats(table, 100),
                                   .positions = floats(positions, 50),
                                   .rows_per_sample = 4,
                                   .y = floats(y, 4)}),
            ids.bytes() + 3 * rows);
  EXPECT_EQ(moved(EmbeddingBackward{.tokens = ids,
                                    .dy = floats(y, 4),
                                    .d_table = floats(table, 100),
                                    .d_positions = floats(positions, 50),
                                    .rows_per_sample = 4}),
            ids.bytes() + 5 * rows);
}

}  // namespace
}  // namespace megalith::test

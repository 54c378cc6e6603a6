#include "moe/ops/rank_rows.h"

#include <cmath>

#include "tests/unit/ops/moe/rank_rows.h"

namespace megalith::test {
namespace {

struct RankSizes {
  std::int64_t tokens, choices, ranks, each, copies;

  std::int64_t experts() const { return ranks / copies * each; }
  reference::ExpertRanks reference() const {
    return {static_cast<std::size_t>(ranks), static_cast<std::size_t>(each), static_cast<std::size_t>(copies)};
  }
};

class RankTablesTest : public RankTest {};
INSTANTIATE_TEST_SUITE_P(Backends, RankTablesTest, testing::ValuesIn(op_cases(DType::kFp32)), name_of_case);

TEST_P(RankTablesTest, ChosenRanks) {
  for (const RankSizes& s :
       {RankSizes{0, 2, 4, 3, 1}, RankSizes{3, 0, 2, 1, 1}, RankSizes{9, 2, 1, 6, 1}, RankSizes{40, 3, 3, 5, 1},
        RankSizes{700, 8, 8, 4, 1}, RankSizes{33, 2, 4, 3, 2}, RankSizes{50, 4, 6, 2, 3}, RankSizes{21, 1, 8, 1, 8}}) {
    SCOPED_TRACE(testing::Message() << s.tokens << " x " << s.choices << " to " << s.ranks << " of " << s.copies);
    const Values chosen = choices(s.tokens, s.choices, s.experts());
    ChosenRanks op{.choice = integers({s.tokens, s.choices}, chosen),
                   .ranks = integers({s.tokens, s.ranks}),
                   .experts_per_rank = s.each,
                   .copies = s.copies};
    run(op);
    EXPECT_EQ(values(op.ranks),
              reference::chosen_ranks(chosen, unsigned_of(s.choices), unsigned_of(s.tokens), s.reference()));
    op.all = true;
    run(op);
    Values want;
    for (std::int64_t i = 0; i < op.ranks.numel(); ++i) want.push_back(static_cast<double>(i % s.ranks));
    EXPECT_EQ(values(op.ranks), want);
  }
}

TEST_P(RankTablesTest, ChosenRanksRefusals) {
  ChosenRanks op{.choice = integers({2, 2}, {0, 3, -1, 6}), .ranks = integers({2, 4}), .experts_per_rank = 3};
  op.copies = 2;
  expect_kernel_error(op, ExitCode::kInternal, "entry 3 of a table of routes: expected -1 to 5, got 6");
  op.copies = 3;
  expect_refused(op, "op.copies: expected a divisor of the number of ranks, got 3");
  op.copies = 1;
  op.experts_per_rank = 0;
  expect_refused(op, "op.experts_per_rank: expected at least 1, and fewer than 2^31 in total, got 0");
}

// More ranks than a warp; with no capacity, some, and enough.
TEST_P(RankTablesTest, ArrivedAndSentRows) {
  for (const std::int64_t ranks : {1, 2, 5, 40, 300}) {
    Values sends;
    for (std::int64_t s = 0; s < ranks; ++s) {
      double row = 0;
      for (std::int64_t p = 0; p <= ranks; ++p) {
        sends.push_back(row);
        row += p != 1 && random()() % 3 == 0 ? 0 : static_cast<double>(1 + random()() % 7);
      }
    }
    const auto at = [&](std::int64_t s, std::int64_t p) { return sends[unsigned_of(s * (ranks + 1) + p)]; };
    const Tensor table = integers({ranks, ranks + 1}, sends);
    const auto rank = static_cast<int>(ranks / 2);
    double wanted = 0;
    Values all{0}, counts, sum;
    for (std::int64_t s = 0; s < ranks; ++s) {
      all.push_back(wanted += at(s, rank + 1) - at(s, rank));
      counts.push_back(static_cast<double>(3 * s));
      sum.push_back(counts.back() + at(rank, s + 1) - at(rank, s));
    }
    for (const double room : {0.0, std::floor(wanted / 2), wanted, wanted + 9}) {
      const ArrivedRows op{.sends = table,
                           .offsets = integers({ranks + 1}),
                           .wanted = integers({1}),
                           .rank = rank,
                           .room = static_cast<std::int64_t>(room)};
      run(op);
      Values want = all;
      for (double& row : want) row = std::min(row, room);
      EXPECT_EQ(values(op.offsets), want);
      EXPECT_EQ(values(op.wanted), Values(1, wanted));
    }
    const CountSentRows count{.sends = table, .counts = inout({ranks}, DType::kInt32, counts), .rank = rank};
    run(count);
    EXPECT_EQ(values(count.counts), sum);
  }
}

TEST_P(RankTablesTest, SendsRefusals) {
  ArrivedRows op{.sends = integers({2, 3}, {0, 4, 9, 0, 5, 2}), .offsets = integers({3}), .wanted = integers({1})};
  op.rank = 1;
  expect_kernel_error(op, ExitCode::kInternal, "entry 5 of a table of routes: expected 5 to 2147483647, got 2");
  const CountSentRows count{.sends = op.sends, .counts = integers({2}), .rank = 1};
  expect_kernel_error(count, ExitCode::kInternal, "entry 5 of a table of routes: expected 5 to 2147483647, got 2");
  op.rank = 2;
  expect_refused(op, "op.rank: expected a rank of op.sends, got 2");
  op.rank = 0;
  op.room = -1;
  expect_refused(op, "op.room: expected 0 to 2^31 - 1, got -1");
}

TEST_P(RankTablesTest, RecordRoom) {
  const Tensor arrived = integers({1}, {70}), rows = integers({1}, {500});
  const auto record = [&](const Values& before, const Idles& idle) {
    const RecordRoom op{.arrived = arrived, .rows = rows, .needed = inout({2}, DType::kInt32, before)};
    run(op, idle);
    return values(op.needed);
  };
  EXPECT_EQ(record({0, 900}, {{rows, "more were wanted before"}}), Values({70, 900}));
  EXPECT_EQ(record({90, 0}, {{arrived, "more were wanted before"}}), Values({90, 500}));
}

TEST_P(RankTablesTest, SumReturnedWeights) {
  for (const RankSizes& s : {RankSizes{0, 2, 2, 3, 1}, RankSizes{1, 1, 1, 4, 1}, RankSizes{30, 3, 4, 2, 1},
                             RankSizes{300, 8, 8, 4, 1}, RankSizes{40, 2, 4, 3, 2}, RankSizes{17, 4, 6, 2, 3}}) {
    SCOPED_TRACE(testing::Message() << s.tokens << " x " << s.choices << " to " << s.ranks << " of " << s.copies);
    Values chosen = choices(s.tokens, s.choices, s.experts());
    if (s.tokens > 0) chosen[0] = 0;
    // Rows of all existing pairs of token and rank, in a different order; the rest is NaN.
    Values position = reference::chosen_ranks(chosen, unsigned_of(s.choices), unsigned_of(s.tokens), s.reference());
    std::int64_t live = 0;
    for (std::size_t i = position.size(); i-- > 0;) position[i] = position[i] >= 0 ? static_cast<double>(live++) : -1;
    Values rows = normal(live * s.choices);
    rows.resize(unsigned_of(s.tokens * s.ranks * s.choices), std::nan(""));
    const SumReturnedWeights op{.x = bounded(input({s.tokens * s.ranks, s.choices}, DType::kFp32, rows), live),
                                .choice = integers({s.tokens, s.choices}, chosen),
                                .position = integers({s.tokens, s.ranks}, position),
                                .d_weight = output({s.tokens, s.choices}, DType::kFp32),
                                .experts_per_rank = s.each,
                                .copies = s.copies};
    run(op);
    Values magnitudes = values(op.x);
    for (double& value : magnitudes) value = std::abs(value);
    const auto want = [&](const Values& x) {
      return reference::returned_weights(x, chosen, position, unsigned_of(s.choices), s.reference());
    };
    expect_close(op.d_weight, want(values(op.x)), {.length = s.copies, .magnitude = want(magnitudes)});
    if (s.tokens < 2) continue;
    SumReturnedWeights beyond = op;
    beyond.x = bounded(op.x, 1);
    expect_kernel_error(beyond, ExitCode::kInternal, "of a table of routes: expected -1 to 0, got ");
  }
}

}  // namespace
}  // namespace megalith::test

#include <cmath>

#include "moe/ops/rank_rows.h"
#include "tests/unit/ops/moe/rank_rows.h"

namespace megalith::test {
namespace {

class UnpermuteGroupsTest : public RankTest {
 protected:
  struct Case {
    std::int64_t tokens, choices, groups, each, columns;
  };
  // Choices of experts from `first` on, a third without capacity; rows and tokens beyond the bounds are poison.
  void expect_sums(const Case& c, bool separate) {
    SCOPED_TRACE(testing::Message() << c.choices << " choices, " << c.groups << " groups, " << c.columns << " columns"
                                    << (separate ? ", apart" : ""));
    constexpr std::int64_t kFirst = 3, kSpare = 2;
    const std::int64_t experts = c.groups * c.each;
    Values choice = choices(c.tokens, c.choices, experts);
    if (c.tokens > 0) choice[0] = 0;
    for (double& expert : choice) expert += expert >= 0 ? kFirst : 0;
    const auto room = unsigned_of((c.tokens * std::min(c.choices, experts) * 2 + 2) / 3);
    const auto routes = reference::route_part(choice, unsigned_of(c.choices), kFirst, unsigned_of(experts), room);
    const auto live = static_cast<std::int64_t>(routes.offsets.back());
    Values rows = normal(live * c.columns), position = routes.position;
    rows.resize(unsigned_of((live + kSpare) * c.columns), std::nan(""));
    position.resize(unsigned_of((c.tokens + kSpare) * c.choices), 1 << 30);
    choice.resize(position.size(), 1 << 30);
    const Shape table{c.tokens + kSpare, c.choices};
    UnpermuteGroups op{.x = bounded(input({live + kSpare, c.columns}, dtype(), rows), live),
                       .position = bounded(integers(table, position), c.tokens),
                       .choice = integers(table, choice),
                       .y = output({c.tokens + kSpare, (separate ? c.groups : 1) * c.columns}),
                       .experts_per_group = c.each,
                       .first_expert = kFirst,
                       .groups = c.groups};
    op.choice.bound = op.y.bound = op.position.bound;
    c.tokens > 0 ? run(op) : launch(stream(), op);  // without tokens, no run can check the reads
    Tensor y = op.y;
    y.bound = nullptr;
    expect_untouched(y.slice(0, c.tokens, kSpare));
    position.resize(routes.position.size());
    const auto want = [&](const Values& given) {
      const Values sums = reference::group_sums(
          given, unsigned_of(c.columns), position, choice, unsigned_of(c.tokens),
          {.groups = unsigned_of(c.groups), .each = unsigned_of(c.each), .first = unsigned_of(kFirst)});
      return separate ? sums : reference::sum_parts(sums, unsigned_of(c.groups), unsigned_of(c.columns));
    };
    const Values x = values(op.x);
    Values magnitudes = x;
    for (double& value : magnitudes) value = std::abs(value);
    expect_close(y.slice(0, 0, c.tokens), want(x), {.length = c.choices, .magnitude = want(magnitudes)});
  }
};
MEGALITH_OP_TESTS(UnpermuteGroupsTest);

TEST_P(UnpermuteGroupsTest, SumsOfGroups) {
  for (const bool separate : {false, true}) {
    for (const std::int64_t groups : {1, 2, 4}) {
      for (const std::int64_t choices : {1, 2, 3, 8, 11}) expect_sums({11, choices, groups, 5, 37}, separate);
    }
    expect_sums({0, 2, 2, 5, 8}, separate);
    expect_sums({3, 2, 2, 5, 0}, separate);
    expect_sums({3, 2, 2, 5, 1}, separate);
    expect_sums({150, 4, 37, 1, 8}, separate);
  }
}

// More than a thread has at once.
TEST_P(UnpermuteGroupsTest, SumsOfLongRows) {
  for (const bool separate : {false, true}) {
    for (const std::int64_t choices : {2, 8, 16}) expect_sums({2, choices, 4, 5, 4200}, separate);
  }
}

TEST_P(UnpermuteGroupsTest, NothingIsZero) {
  for (const std::int64_t groups : {1, 3}) {
    const Tensor y = output({2, groups * 10}), x = input({4, 10});
    const UnpermuteGroups op{.x = x,
                             .position = integers({2, 2}, Values(4, -1.0)),
                             .choice = integers({2, 2}, Values(4, 99.0)),
                             .y = y,
                             .experts_per_group = 1,
                             .groups = groups};
    run(op, {{x, "no choice has a row"}, {op.choice, "no choice has a row"}});
    EXPECT_EQ(values(y), Values(unsigned_of(groups * 20), 0.0));
    UnpermuteGroups none = op;
    none.position = none.choice = integers({2, 0}, Values());
    run(none, {{x, "no choices"}});
    EXPECT_EQ(values(y), Values(unsigned_of(groups * 20), 0.0));
  }
}

// 1 is lost when added to 2^30: a group's sum shows the order of its terms, and the total that of the groups.
TEST_P(UnpermuteGroupsTest, AddsInTheOrderOfChoicesThenGroups) {
  const double large = 1 << 30;
  Values each;
  for (const double value : {large, -large, 1.0}) each.insert(each.end(), 8, value);
  const auto sums = [&](const Values& choice, std::int64_t groups) {
    const UnpermuteGroups op{.x = input({3, 8}, dtype(), each),
                             .position = integers({1, 3}, {0, 1, 2}),
                             .choice = integers({1, 3}, choice),
                             .y = output({1, 8}),
                             .experts_per_group = 3 / groups,
                             .groups = groups};
    run(op);
    return values(op.y);
  };
  EXPECT_EQ(sums({0, 1, 2}, 1), Values(8, 1.0));
  EXPECT_EQ(sums({2, 0, 1}, 1), Values(8, 1.0));  // one group's order, not that of the experts
  EXPECT_EQ(sums({0, 1, 2}, 3), Values(8, 1.0));
  EXPECT_EQ(sums({0, 2, 1}, 3), Values(8, 0.0));
}

TEST_P(UnpermuteGroupsTest, Refusals) {
  UnpermuteGroups op{.x = input({2, 8}),
                     .position = integers({2, 2}, {0, -1, 1, -1}),
                     .choice = integers({2, 2}, {4, 99, 7, -1}),
                     .y = output({2, 8}),
                     .experts_per_group = 2,
                     .first_expert = 3,
                     .groups = 2};
  expect_kernel_error(op, ExitCode::kInternal, "entry 2 of a table of routes: expected 3 to 6, got 7");
  op.position = integers({2, 2}, {0, -1, 2, -1});
  expect_kernel_error(op, ExitCode::kInternal, "entry 2 of a table of routes: expected -1 to 1, got 2");
  op.groups = 0;
  expect_refused(op, "op.groups: expected 1 to 1024, got 0");
  op.groups = 2;
  op.y = output({2, 24});
  expect_refused(op, "op.y: expected shape [2, 16], got [2, 24]");
  op.position = op.choice = integers({2, 17}, Values(34, -1.0));
  expect_refused(op, "op.position: expected at most 16 choices of a token, got [2, 17]");
}

}  // namespace
}  // namespace megalith::test

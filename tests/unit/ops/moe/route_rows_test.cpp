#include "moe/ops/route_rows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/ops/elementwise/elementwise.h"
#include "tests/reference/rank_rows.h"
#include "tests/reference/route_rows.h"
#include "tests/support/replays.h"

namespace megalith::test {
namespace {

struct RouteSizes {
  std::int64_t tokens, choices, experts;
};

class RouteTest : public OpTest {
 protected:
  // For each token different experts out of the selectable ones; -1 if they do not suffice, and for about one choice in
  // `one_in`.
  Values choices(const RouteSizes& sizes, std::vector<double> experts, int one_in = 0) {
    Values result;
    for (std::int64_t t = 0; t < sizes.tokens; ++t) {
      for (std::size_t k = 0; k < static_cast<std::size_t>(sizes.choices); ++k) {
        if (k < experts.size()) {
          std::uniform_int_distribution<std::size_t> any(k, experts.size() - 1);
          std::swap(experts[k], experts[any(random())]);
        }
        const bool none = one_in > 0 && std::uniform_int_distribution(0, one_in - 1)(random()) == 0;
        result.push_back(none || k >= experts.size() ? -1 : experts[k]);
      }
    }
    return result;
  }
  Values choices(const RouteSizes& sizes, int one_in = 0) {
    std::vector<double> all(static_cast<std::size_t>(sizes.experts));
    std::iota(all.begin(), all.end(), 0);
    return choices(sizes, all, one_in);
  }
  reference::Routes routes(const RouteSizes& sizes, const Values& choice) {
    return reference::route(choice, static_cast<std::size_t>(sizes.choices), static_cast<std::size_t>(sizes.experts));
  }
  static Values absolute(Values x) {
    for (double& value : x) value = std::abs(value);
    return x;
  }
};

class ExpertOffsetsTest : public RouteTest {
 protected:
  void expect_routes(const RouteSizes& sizes, const Values& given, bool bounded = false) {
    SCOPED_TRACE(testing::Message() << sizes.tokens << " tokens, " << sizes.choices << " choices, " << sizes.experts
                                    << " experts");
    const std::int64_t rows = sizes.tokens * sizes.choices;
    const Tensor choice = input({sizes.tokens, sizes.choices}, DType::kInt32, given);
    const Tensor offsets = output({sizes.experts + 1}, DType::kInt32), position = output(choice.shape, DType::kInt32);
    Tensor token = output({rows}, DType::kInt32);
    if (bounded) token.bound = offsets.as<const std::int32_t>() + sizes.experts;
    run(ExpertOffsets{.choice = choice, .offsets = offsets, .token = token, .position = position});
    const reference::Routes want = routes(sizes, given);
    EXPECT_EQ(values(offsets), want.offsets);
    EXPECT_EQ(values(token), want.token);
    EXPECT_EQ(values(position), want.position);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ExpertOffsetsTest, testing::ValuesIn(op_cases(DType::kFp32)), name_of_case);

// Up to more slots than one block, and experts than leave a block all its warps.
TEST_P(ExpertOffsetsTest, RowsAreInTheOrderOfExpertTokenAndChoice) {
  for (const RouteSizes& sizes :
       {RouteSizes{0, 8, 4}, RouteSizes{5, 0, 3}, RouteSizes{1, 1, 1}, RouteSizes{7, 2, 3}, RouteSizes{33, 8, 256},
        RouteSizes{65, 16, 37}, RouteSizes{301, 8, 256}, RouteSizes{700, 3, 300}, RouteSizes{9, 2, 1024}}) {
    expect_routes(sizes, choices(sizes));
  }
}

TEST_P(ExpertOffsetsTest, ManyRowsOfAWarp) {
  const RouteSizes sizes{.tokens = 18751, .choices = 8, .experts = 128};
  expect_routes(sizes, choices(sizes, 50));
}

TEST_P(ExpertOffsetsTest, AChoiceOfNoneTakesNoRow) {
  for (const bool bounded : {false, true}) {
    expect_routes({3, 4, 1}, choices({3, 4, 1}), bounded);
    expect_routes({150, 8, 16}, choices({150, 8, 16}, 4), bounded);
    expect_routes({4, 2, 5}, Values(8, -1.0), bounded);
  }
}

TEST_P(ExpertOffsetsTest, ExpertsWithoutAndWithAllRows) {
  expect_routes({600, 2, 6}, choices({600, 2, 6}, {1, 2, 4}));
  for (const double only : {0.0, 3.0, 6.0}) expect_routes({1100, 1, 7}, Values(1100, only));
}

// Choices of some experts, bounded, with poison in later rows; capacity for none, some, all and more.
TEST_P(ExpertOffsetsTest, PartOfTheExpertsWithRoomForSomeRows) {
  constexpr std::int64_t kFirst = 4, kSpare = 3;
  for (const RouteSizes& sizes : {RouteSizes{0, 2, 3}, RouteSizes{1, 1, 1}, RouteSizes{90, 4, 5},
                                  RouteSizes{700, 8, 300}, RouteSizes{3001, 2, 8}}) {
    Values live = choices({sizes.tokens, sizes.choices, sizes.experts + 7}, 6);
    if (sizes.tokens > 0) live[0] = kFirst;
    Values given = live;
    given.resize(given.size() + static_cast<std::size_t>(kSpare * sizes.choices), 1 << 30);
    const auto all = reference::route_part(live, static_cast<std::size_t>(sizes.choices), kFirst,
                                           static_cast<std::size_t>(sizes.experts), live.size());
    for (const double room : {0.0, 1.0, std::floor(all.wanted / 2), all.wanted, all.wanted + 5}) {
      SCOPED_TRACE(testing::Message() << room << " of " << all.wanted << " rows, " << sizes.experts << " experts");
      const auto want = reference::route_part(live, static_cast<std::size_t>(sizes.choices), kFirst,
                                              static_cast<std::size_t>(sizes.experts), static_cast<std::size_t>(room));
      Tensor choice = input({sizes.tokens + kSpare, sizes.choices}, DType::kInt32, given);
      Tensor position = output(choice.shape, DType::kInt32);
      choice.bound = position.bound = device_struct(static_cast<std::int32_t>(sizes.tokens));
      const ExpertOffsets op{.choice = choice,
                             .offsets = output({sizes.experts + 1}, DType::kInt32),
                             .token = output({static_cast<std::int64_t>(room)}, DType::kInt32),
                             .position = position,
                             .wanted = output({1}, DType::kInt32),
                             .first_expert = kFirst,
                             .all_experts = kFirst + sizes.experts + 3};
      run(op, sizes.tokens > 0 ? Idles{} : Idles{{choice, "no tokens"}});
      EXPECT_EQ(values(op.offsets), want.offsets);
      EXPECT_EQ(values(op.wanted), Values(1, all.wanted));
      const auto rows = static_cast<std::int64_t>(want.token.size());
      EXPECT_EQ(values(op.token.slice(0, 0, rows)), want.token);
      expect_untouched(op.token.slice(0, rows, op.token.numel() - rows));
      position.bound = nullptr;
      EXPECT_EQ(values(position.slice(0, 0, sizes.tokens)), want.position);
      expect_untouched(position.slice(0, sizes.tokens, kSpare));
    }
  }
}

TEST_P(ExpertOffsetsTest, Refusals) {
  const Tensor choice = input({3, 2}, DType::kInt32, {0, 1, 2, 0, 1, 3}), token = output({6}, DType::kInt32);
  const Tensor offsets = output({4}, DType::kInt32), position = output({3, 2}, DType::kInt32);
  ExpertOffsets op{.choice = choice, .offsets = offsets, .token = token, .position = position, .all_experts = 3};
  expect_kernel_error(op, ExitCode::kInternal, "entry 5 of a table of routes: expected -1 to 2, got 3");
  op.offsets = output({1}, DType::kInt32);
  expect_refused(op, "op.offsets: expected 1 to 1024 experts plus one entry, got [1]");
  op.offsets = output({1026}, DType::kInt32);
  expect_refused(op, "op.offsets");
  op.offsets = offsets;
  op.token.bound = offsets.as<const std::int32_t>() + 2;
  expect_refused(
      op, "op.token: expected no bound but that of the tensor it is like, or the end of op.offsets, got another");
  op.token = output({5}, DType::kInt32);
  expect_refused(op, "op.token: expected capacity for all rows, or op.wanted, got [5]");
  op.token = token;
  op.all_experts = 4;
  op.first_expert = 2;
  expect_refused(op, "op.all_experts: expected 0, or at least the experts of op.offsets, got 4");
}

class RouteRowsTest : public RouteTest {};
MEGALITH_OP_TESTS(RouteRowsTest);

// Rows from offsets[E] on have an index that no op reads.
TEST_P(RouteRowsTest, Permute) {
  for (const std::int64_t columns : {0, 1, 8, 37, 520, 17000}) {
    for (const std::int64_t live : {0, 1, 5}) {
      const Values tokens = {2, 0, 2, 1, 3}, read(tokens.begin(), tokens.begin() + live);
      Values index = read;
      index.resize(7, 1 << 30);
      const Tensor x = input({4, columns}), y = output({7, columns});
      const PermuteRows op{.x = x,
                           .index = input({7}, DType::kInt32, index),
                           .offsets = input({3}, DType::kInt32, {0, 0, static_cast<double>(live)}),
                           .y = y};
      Idles idle;
      if (live == 0 && columns > 0) idle = {{x, "no rows"}, {op.index, "no rows"}};
      run(op, idle);
      EXPECT_EQ(values(y.slice(0, 0, live)), reference::rows_at(values(x), static_cast<std::size_t>(columns), read));
      expect_untouched(y.slice(0, live, 7 - live));
      PermuteRows bounded = op;
      bounded.y.bound = bounded.index.bound = op.offsets.as<const std::int32_t>() + 2;
      const Values want = values(y.slice(0, 0, live));
      run(bounded, idle);
      EXPECT_EQ(values(y.slice(0, 0, live)), want);
      expect_untouched(y.slice(0, live, 7 - live));
    }
  }
  run(PermuteRows{.x = input({0, 8}),
                  .index = input({0}, DType::kInt32, Values()),
                  .offsets = input({2}, DType::kInt32, {0, 0}),
                  .y = output({0, 8})});
}

TEST_P(RouteRowsTest, Unpermute) {
  for (const std::int64_t k : {1, 2, 3, 6, 8, 16}) {
    for (const std::int64_t columns : {0, 1, 8, 37, 4200}) {
      const RouteSizes sizes{.tokens = columns > 1000 ? 2 : 13, .choices = k, .experts = 20};
      const Values position = routes(sizes, choices(sizes, k == 3 ? 0 : 5)).position;
      const std::int64_t rows = sizes.tokens * k;
      const Tensor x = input({rows, columns}), y = output({sizes.tokens, columns});
      run(UnpermuteRows{.x = x, .position = input({sizes.tokens, k}, DType::kInt32, position), .y = y});
      const auto width = static_cast<std::size_t>(columns), tokens = static_cast<std::size_t>(sizes.tokens);
      expect_close(y, reference::sum_rows_at(values(x), width, position, tokens),
                   {.length = k, .magnitude = reference::sum_rows_at(absolute(values(x)), width, position, tokens)});
    }
  }
}

// Each part counts as a separate choice.
TEST_P(RouteRowsTest, UnpermuteRowsOfParts) {
  for (const std::int64_t parts : {2, 3, 8}) {
    for (const std::int64_t k : {1, 3, 8}) {
      for (const std::int64_t columns : {1, 8, 37, 2600}) {
        const RouteSizes sizes{.tokens = columns > 1000 ? 2 : 13, .choices = k, .experts = 20};
        const Values position = routes(sizes, choices(sizes, 5)).position;
        const Tensor x = input({sizes.tokens * k, parts * columns}), y = output({sizes.tokens, columns});
        run(UnpermuteRows{.x = x, .position = input({sizes.tokens, k}, DType::kInt32, position), .y = y});
        Values position_of_parts;
        for (const double row : position) {
          for (std::int64_t s = 0; s < parts; ++s)
            position_of_parts.push_back(row < 0 ? -1 : row * static_cast<double>(parts) + static_cast<double>(s));
        }
        const auto width = static_cast<std::size_t>(columns), tokens = static_cast<std::size_t>(sizes.tokens);
        expect_close(y, reference::sum_rows_at(values(x), width, position_of_parts, tokens),
                     {.length = k * parts,
                      .magnitude = reference::sum_rows_at(absolute(values(x)), width, position_of_parts, tokens)});
      }
    }
  }
  const Tensor y = output({3, 8}), position = input({3, 1}, DType::kInt32, {1, 0, -1});
  expect_refused(UnpermuteRows{.x = input({2, 20}), .position = position, .y = y},
                 "op.x: expected rows of one or more parts, each as wide as a row of op.y, got [2, 20]");
}

TEST_P(RouteRowsTest, UnpermuteNothing) {
  const Tensor y = output({3, 10}), x = input({2, 10});
  const UnpermuteRows op{.x = x, .position = input({3, 2}, DType::kInt32, Values(6, -1.0)), .y = y};
  run(op, {{x, "no choice has a row"}});
  EXPECT_EQ(values(y), Values(30, 0.0));
  run(UnpermuteRows{.x = input({0, 10}), .position = input({3, 0}, DType::kInt32, Values()), .y = y});
  EXPECT_EQ(values(y), Values(30, 0.0));
  run(UnpermuteRows{.x = x, .position = input({0, 2}, DType::kInt32, Values()), .y = output({0, 10})});
}

// 1 is lost when added to 2^30, only there: the sum shows the order of its terms, not that of the rows.
TEST_P(RouteRowsTest, UnpermuteAddsInTheOrderOfTheChoices) {
  const double large = 1 << 30;
  const Values rows = {large, -large, 1};
  const Tensor position = input({3, 3}, DType::kInt32, {0, 1, 2, 0, 2, 1, 1, 2, 0}), y = output({3, 8});
  Values each;
  for (const double value : rows) each.insert(each.end(), 8, value);
  run(UnpermuteRows{.x = input({3, 8}, dtype(), each), .position = position, .y = y});
  const Values got = values(y);
  EXPECT_EQ(Values(got.begin(), got.begin() + 8), Values(8, 1.0));
  EXPECT_EQ(Values(got.begin() + 8, got.end()), Values(16, 0.0));
}

// A graph that was captured with some choices gives the results of others after these replace the first.
TEST_P(RouteRowsTest, ReplaysWithAnotherRouting) {
  const RouteSizes sizes{.tokens = 40, .choices = 3, .experts = 7};
  const Values first = choices(sizes), second = choices(sizes);
  const Tensor choice = output({40, 3}, DType::kInt32), offsets = output({8}, DType::kInt32);
  const Tensor token = output({120}, DType::kInt32), position = output({40, 3}, DType::kInt32);
  const Tensor x = input({40, 24}), rows = output({120, 24}), y = output({40, 24});
  const ExpertOffsets sort =
      ready(ExpertOffsets{.choice = choice, .offsets = offsets, .token = token, .position = position});
  const auto enqueue = [&] {
    launch(stream(), sort);
    launch(stream(), PermuteRows{.x = x, .index = token, .offsets = offsets, .y = rows});
    launch(stream(), UnpermuteRows{.x = rows, .position = position, .y = y});
  };
  const auto results_of = [&](const Values& chosen, const std::function<void()>& act) {
    launch(stream(), Copy{.src = input(choice.shape, DType::kInt32, chosen), .dst = choice});
    act();
    return std::vector<Values>{values(offsets), values(token), values(position), values(rows), values(y)};
  };
  expect_replay_follows(stream(), first, second, enqueue, results_of);
}

// Rows beyond the bound are neither read nor written, and a choice of one is an error.
TEST_P(RouteRowsTest, BoundedRows) {
  const auto bounded = [&](Tensor x) {
    x.bound = device_struct(std::int32_t{4});
    return x;
  };
  const Tensor position = input({3, 2}, DType::kInt32, {3, 0, -1, 2, 1, -1}), y = output({3, 9});
  const Tensor x = input({6, 9}), partial = input({6, 5}, DType::kFp32), d_weight = output({3, 2}, DType::kFp32);
  const Tensor weight = input({3, 2}, DType::kFp32), row_weight = output({6}, DType::kFp32);
  run(UnpermuteRows{.x = bounded(x), .position = position, .y = y});
  run(UnpermuteWeightGradients{.partial = bounded(partial), .position = position, .d_weight = d_weight});
  run(PermuteWeights{.weight = weight, .position = position, .row_weight = bounded(row_weight)});
  expect_untouched(row_weight.slice(0, 4, 2));
  const Tensor beyond = input({3, 2}, DType::kInt32, {3, 0, -1, 4, 1, -1});
  const std::string_view got = "entry 3 of a table of routes: expected -1 to 3, got 4";
  expect_kernel_error(UnpermuteRows{.x = bounded(x), .position = beyond, .y = y}, ExitCode::kInternal, got);
  expect_kernel_error(PermuteWeights{.weight = weight, .position = beyond, .row_weight = bounded(row_weight)},
                      ExitCode::kInternal, got);
}

// Tokens beyond the bound have invalid positions; their rows are left untouched.
TEST_P(RouteRowsTest, BoundedTokens) {
  for (const std::int64_t live : {0, 2}) {
    Tensor position = input({3, 2}, DType::kInt32, {3, 0, -1, 2, 1 << 30, 1 << 30}), y = output({3, 9});
    Tensor weight = input({3, 2}, DType::kFp32), d_weight = output({3, 2}, DType::kFp32);
    position.bound = y.bound = weight.bound = d_weight.bound = device_struct(static_cast<std::int32_t>(live));
    const Tensor x = input({6, 9}), partial = input({6, 1}, DType::kFp32), row_weight = output({6}, DType::kFp32);
    const auto idle = [&](const Tensor& read) {
      return live > 0 ? Idles{} : Idles{{read, "no tokens"}, {position, "no tokens"}};
    };
    const auto expect = [&](Tensor result, const std::function<Values(const Values&)>& want, const Tensor& read) {
      result.bound = nullptr;
      expect_untouched(result.slice(0, live, 3 - live));
      if (live > 0) {
        const Values given = values(read);
        expect_close(result.slice(0, 0, live), want(given), {.length = 2, .magnitude = want(absolute(given))});
      }
    };
    run(UnpermuteRows{.x = x, .position = position, .y = y}, idle(x));
    expect(
        y,
        [](const Values& rows) {
          return reference::sum_rows_at(rows, 9, {3, 0, -1, 2}, 2);
        },
        x);
    run(UnpermuteWeightGradients{.partial = partial, .position = position, .d_weight = d_weight}, idle(partial));
    expect(
        d_weight,
        [](const Values& sums) {
          return Values{sums[3], sums[0], 0, sums[2]};
        },
        partial);
    run(PermuteWeights{.weight = weight, .position = position, .row_weight = row_weight}, idle(weight));
    const Values got = values(row_weight), given = values(weight);
    const Values moved{got[3], got[0], got[2]}, of_slots{given[0], given[1], given[3]};
    EXPECT_EQ(moved == of_slots, live > 0);
    for (const std::int64_t row : live > 0 ? std::vector<std::int64_t>{1, 4, 5} : std::vector<std::int64_t>{0, 2, 3})
      expect_untouched(row_weight.slice(0, row, 1));
  }
}

class RouteWeightsTest : public RouteTest {};
INSTANTIATE_TEST_SUITE_P(Backends, RouteWeightsTest, testing::ValuesIn(op_cases(DType::kFp32)), name_of_case);

TEST_P(RouteWeightsTest, FollowTheirRowsThereAndBack) {
  for (const std::int64_t tokens : {0, 1, 7, 150}) {
    for (const std::int64_t k : {1, 2, 8}) {
      const RouteSizes sizes{.tokens = tokens, .choices = k, .experts = 11};
      const reference::Routes routed = routes(sizes, choices(sizes, 6));
      const auto live = static_cast<std::int64_t>(routed.offsets.back()), rows = tokens * k;
      const Tensor position = input({tokens, k}, DType::kInt32, routed.position);
      const Tensor weight = input({tokens, k}, DType::kFp32), row_weight = output({rows}, DType::kFp32);
      run(PermuteWeights{.weight = weight, .position = position, .row_weight = row_weight},
          live == 0 && rows > 0 ? Idles{{weight, "no rows"}} : Idles{});
      expect_untouched(row_weight.slice(0, live, rows - live));
      // One partial sum brings each weight back to its choice.
      const Tensor back = output({tokens, k}, DType::kFp32), ones = row_weight.view({rows, 1});
      Values want = values(weight);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] = routed.position[i] >= 0 ? want[i] : 0;
      const Tensor partial = input({rows, 1}, DType::kFp32, values(ones));
      run(UnpermuteWeightGradients{.partial = partial, .position = position, .d_weight = back},
          live == 0 && rows > 0 ? Idles{{partial, "no rows"}} : Idles{});
      EXPECT_EQ(values(back), want);
    }
  }
}

TEST_P(RouteWeightsTest, GradientsAddTheirPartsInOrder) {
  const Tensor position = input({2, 2}, DType::kInt32, {1, -1, 0, 2}), d_weight = output({2, 2}, DType::kFp32);
  for (const std::int64_t parts : {0, 1, 3, 112}) {
    const Tensor partial = input({3, parts}, DType::kFp32);
    run(UnpermuteWeightGradients{.partial = partial, .position = position, .d_weight = d_weight});
    Values want(4, 0.0);
    const Values terms = values(partial);
    for (const auto& [slot, row] : {std::pair{0, 1}, std::pair{2, 0}, std::pair{3, 2}}) {
      float sum = 0;
      for (std::int64_t p = 0; p < parts; ++p)
        sum += static_cast<float>(terms[static_cast<std::size_t>(row * parts + p)]);
      want[static_cast<std::size_t>(slot)] = static_cast<double>(sum);
    }
    EXPECT_EQ(values(d_weight), want);
  }
}

}  // namespace
}  // namespace megalith::test

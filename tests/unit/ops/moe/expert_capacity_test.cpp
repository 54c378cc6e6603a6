#include "moe/ops/expert_capacity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/reference/route_rows.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

struct CapacitySizes {
  std::int64_t tokens, choices, experts;
};

class ExpertCapacityTest : public OpTest {
 protected:
  // Each choice is a different neighbor of the token's first expert; the first two experts occur most often.
  Values choices(const CapacitySizes& sizes) {
    Values result;
    for (std::int64_t t = 0; t < sizes.tokens; ++t) {
      const auto first = static_cast<std::int64_t>(random()() % 4 == 0 ? random()() % 1000 : random()() % 2);
      for (std::int64_t k = 0; k < sizes.choices; ++k)
        result.push_back(random()() % 9 == 0 ? -1 : static_cast<double>((first + k) % sizes.experts));
    }
    return result;
  }
  void limit(const CapacitySizes& sizes, std::int64_t capacity, const Values& weights);
};
INSTANTIATE_TEST_SUITE_P(Backends, ExpertCapacityTest, testing::ValuesIn(op_cases(DType::kFp32)), name_of_case);

// Sorts each expert's rows: keeps the rows of the highest weights; among equal ones, the first.
Values kept_of(const Values& choice, const reference::Routes& routes, std::size_t capacity, const Values& weights) {
  Values kept(choice.size(), -1.0);
  for (std::size_t e = 0; e + 1 < routes.offsets.size(); ++e) {
    std::vector<std::size_t> slots;
    for (std::size_t slot = 0; slot < choice.size(); ++slot) {
      if (choice[slot] == static_cast<double>(e)) slots.push_back(slot);
    }
    const auto weight = [&](std::size_t slot) {
      return weights.empty() ? 0 : weights[static_cast<std::size_t>(routes.position[slot])];
    };
    std::stable_sort(slots.begin(), slots.end(), [&](auto a, auto b) { return weight(a) > weight(b); });
    slots.resize(std::min(slots.size(), capacity));
    for (const std::size_t slot : slots) kept[slot] = static_cast<double>(e);
  }
  return kept;
}

void ExpertCapacityTest::limit(const CapacitySizes& sizes, std::int64_t capacity, const Values& weights) {
  SCOPED_TRACE(testing::Message() << sizes.tokens << " x " << sizes.choices << " to " << sizes.experts << ", at most "
                                  << capacity << (weights.empty() ? ", by position" : ", by weight"));
  const Values chosen = choices(sizes);
  const reference::Routes routes =
      reference::route(chosen, static_cast<std::size_t>(sizes.choices), static_cast<std::size_t>(sizes.experts));
  const Tensor choice = input({sizes.tokens, sizes.choices}, DType::kInt32, chosen);
  LimitExpertRows op{.choice = choice,
                     .position = input(choice.shape, DType::kInt32, routes.position),
                     .offsets = input({sizes.experts + 1}, DType::kInt32, routes.offsets),
                     .kept = output(choice.shape, DType::kInt32),
                     .capacity = capacity};
  if (!weights.empty()) op.row_weight = input({choice.numel()}, DType::kFp32, weights);
  const Values want = kept_of(chosen, routes, static_cast<std::size_t>(capacity), weights);
  Idles idle;
  if (want == chosen) {
    idle.push_back({op.offsets, "all rows stay"});
    if (op.row_weight) idle.push_back({op.row_weight, "all rows stay"});
  }
  run(op, idle);
  EXPECT_EQ(values(op.kept), want);
}

TEST_P(ExpertCapacityTest, KeepsTheHighestWeightsOrTheFirst) {
  for (const CapacitySizes& sizes : {CapacitySizes{40, 2, 5}, CapacitySizes{300, 8, 64}, CapacitySizes{2500, 3, 4}}) {
    Values weights = values(input({sizes.tokens * sizes.choices}, DType::kFp32));
    for (double& weight : weights) weight = std::abs(weight);
    Values few = weights;  // many ties
    for (double& weight : few) weight = std::floor(weight * 2) / 2;
    const std::int64_t mean = sizes.tokens * sizes.choices / sizes.experts;
    for (const std::int64_t capacity : {std::int64_t{1}, mean}) {
      for (const Values& with : {Values{}, weights, few}) limit(sizes, capacity, with);
    }
  }
  limit({6, 2, 3}, 6, Values(12, 0.5));
}

TEST_P(ExpertCapacityTest, OrdersAllNumbers) {
  const float inf = std::numeric_limits<float>::infinity();
  const Values chosen(7, 0.0),
      weights{-1.0, 0.0, static_cast<double>(inf), 1e-40, -static_cast<double>(inf), 2.0, 1e-39};
  for (std::int64_t capacity = 1; capacity < 7; ++capacity) {
    const reference::Routes routes = reference::route(chosen, 1, 1);
    const LimitExpertRows op{.choice = input({7, 1}, DType::kInt32, chosen),
                             .position = input({7, 1}, DType::kInt32, routes.position),
                             .offsets = input({2}, DType::kInt32, routes.offsets),
                             .row_weight = input({7}, DType::kFp32, weights),
                             .kept = output({7, 1}, DType::kInt32),
                             .capacity = capacity};
    launch(stream(), ready(op));
    EXPECT_EQ(values(op.kept), kept_of(chosen, routes, static_cast<std::size_t>(capacity), weights)) << capacity;
  }
}

TEST_P(ExpertCapacityTest, NamesABadTable) {
  LimitExpertRows op{.choice = input({3, 1}, DType::kInt32, {0, 2, 1}),
                     .position = input({3, 1}, DType::kInt32, {0, 1, 2}),
                     .offsets = input({3}, DType::kInt32, {0, 2, 3}),
                     .kept = output({3, 1}, DType::kInt32),
                     .capacity = 1};
  expect_kernel_error(ready(op), ExitCode::kInternal, "entry 1 of a table of routes: expected -1 to 1, got 2");
  op.choice = input({3, 1}, DType::kInt32, {0, -1, 1});
  op.position = input({3, 1}, DType::kInt32, {0, -1, 3});
  expect_kernel_error(ready(op), ExitCode::kInternal, "entry 2 of a table of routes: expected 0 to 2, got 3");
}

}  // namespace
}  // namespace megalith::test

#include "moe/ops/router.h"

#include <cmath>
#include <limits>
#include <set>

#include "tests/unit/ops/moe/router_cases.h"

namespace megalith::test {
namespace {

class RouterTest : public RouterOpTest {
 protected:
  void topk(const Routing& routing, RouterScore score, float scaling) {
    SCOPED_TRACE(testing::Message() << routing.tokens << " x " << routing.experts << " to " << routing.choices
                                    << ", score " << static_cast<int>(score) << ", groups " << routing.groups);
    const reference::RouterSettings with = settings(routing, score, scaling);
    const Tensor bias = routing.bias ? input({routing.experts}, DType::kFp32) : Tensor();
    const Values biases = routing.bias ? values(bias) : Values();
    const Tensor logits = separate_logits(routing, with, biases);
    const Tensor choice = output({routing.tokens, routing.choices}, DType::kInt32);
    const Tensor weight = output(choice.shape, DType::kFp32);
    run(RouterTopk{.logits = logits,
                   .expert_bias = bias,
                   .choice = choice,
                   .weight = weight,
                   .score = score,
                   .scaling_factor = scaling,
                   .num_groups = routing.groups,
                   .group_topk = routing.open_groups});
    Values want_choice, want, size;
    const Values x = values(logits);
    for (std::int64_t t = 0; t < routing.tokens; ++t) {
      const Values row = row_of(x, t, routing.experts);
      const reference::RouterExperts experts = reference::choose_experts(row, biases, with).experts;
      const Values weights = reference::router_weights(row, experts, with);
      const Roundings roundings(with.over_all ? row : reference::gathered(row, experts));
      for (std::size_t k = 0; k < experts.size(); ++k) {
        want_choice.push_back(static_cast<double>(experts[k]));
        want.push_back(weights[k]);
        size.push_back(weights[k] * (with.is_sigmoid ? kSigmoidRoundings : roundings.of(row[experts[k]])));
      }
    }
    EXPECT_EQ(values(choice), want_choice);
    expect_close(weight, want, {.length = routing.experts, .magnitude = size, .what = "weight"});
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RouterTest, testing::ValuesIn(op_cases(DType::kFp32)), name_of_case);

TEST_P(RouterTest, Topk) {
  for (const Routing& routing :
       {Routing{0, 8, 2}, Routing{5, 1, 1}, Routing{7, 3, 1}, Routing{3, 3, 3}, Routing{9, 64, 8}, Routing{17, 128, 8},
        Routing{3, 16, 16}, Routing{5, 130, 6}, Routing{3, 256, 16}, Routing{2, 300, 16}, Routing{2, 1024, 4}}) {
    for (const RouterScore score : kScores) {
      topk(routing, score, 1);
      topk(routing, score, 2.5f);
    }
  }
}

TEST_P(RouterTest, GroupsAndBias) {
  for (Routing routing : {Routing{9, 64, 8, 8, 4}, Routing{5, 256, 8, 8, 4}, Routing{7, 30, 4, 3, 2},
                          Routing{7, 12, 6, 6, 3}, Routing{3, 320, 16, 32, 16}, Routing{5, 24, 3, 4, 1},
                          Routing{3, 512, 4, 2, 2}, Routing{2, 1024, 8, 8, 4}, Routing{11, 40, 4, 1, 1}}) {
    for (const RouterScore score : kScores) topk(routing, score, 1);
    routing.bias = true;
    topk(routing, RouterScore::kSigmoid, 2.5f);
  }
}

// Equal scores choose the lower expert, equal groups the lower group; 0 equals -0.
TEST_P(RouterTest, Ties) {
  constexpr std::int64_t kTokens = 12;
  for (const std::int64_t experts : {6, 64, 132, 300}) {
    const Routing plain{kTokens, experts, 5}, grouped{kTokens, experts, 4, 3, 2};
    for (const Routing& routing : {plain, experts % 3 == 0 ? grouped : plain}) {
      for (const RouterScore score : kScores) {
        Values x = normal(kTokens * experts, 1);
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] = i < static_cast<std::size_t>(2 * experts) ? (i % 3 == 0 ? -0.0 : 0.0) : std::round(x[i]);
        }
        const reference::RouterSettings with = settings(routing, score, 1);
        const Tensor choice = output({kTokens, routing.choices}, DType::kInt32);
        run(RouterTopk{.logits = input({kTokens, experts}, DType::kFp32, x),
                       .choice = choice,
                       .weight = output(choice.shape, DType::kFp32),
                       .score = score,
                       .num_groups = routing.groups,
                       .group_topk = routing.open_groups});
        Values want;
        // Only groups of equal logits: their sums are equal in any precision, unlike those of other numbers.
        const std::int64_t tokens = routing.groups > 1 ? 2 : kTokens;
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (const std::size_t e : reference::choose_experts(row_of(x, t, experts), {}, with).experts) {
            want.push_back(static_cast<double>(e));
          }
        }
        EXPECT_EQ(row_of(values(choice), 0, tokens * routing.choices), want) << experts;
      }
    }
  }
}

TEST_P(RouterTest, ChoicesAreValidWhateverTheLogits) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  constexpr std::int64_t kExperts = 12, kChoices = 4;
  Values x;
  for (const Values& pattern :
       {Values{nan}, Values{nan, 1}, Values{inf}, Values{-inf}, Values{nan, inf, -inf},
        Values{1, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, -inf}, Values{nan}, Values{nan}}) {
    for (std::size_t e = 0; e < kExperts; ++e) x.push_back(pattern[e % pattern.size()]);
  }
  const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / kExperts;
  const Tensor logits = input({tokens, kExperts}, DType::kFp32, x);
  for (const RouterScore score : kScores) {
    for (const std::int64_t groups : {1, 3}) {
      const Tensor choice = output({tokens, kChoices}, DType::kInt32);
      launch(stream(), RouterTopk{.logits = logits,
                                  .choice = choice,
                                  .weight = output(choice.shape, DType::kFp32),
                                  .score = score,
                                  .num_groups = groups,
                                  .group_topk = groups == 1 ? 1 : 2});
      const Values all = values(choice);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const Values chosen = row_of(all, t, kChoices);
        EXPECT_EQ(std::set<double>(chosen.begin(), chosen.end()).size(), static_cast<std::size_t>(kChoices));
        for (const double e : chosen) EXPECT_TRUE(e >= 0 && e < kExperts) << e;
      }
      if (groups == 1) {
        EXPECT_EQ(row_of(all, 1, kChoices), (Values{1, 3, 5, 7})) << "what is no number comes last";
        EXPECT_EQ(row_of(all, 5, kChoices), (Values{0, 11, 1, 2}));
      }
      EXPECT_EQ(row_of(all, 0, kChoices), (Values{0, 7, 2, 9})) << "of no number";
      EXPECT_EQ(row_of(all, 6, kChoices), (Values{0, 7, 2, 9}));
      EXPECT_EQ(row_of(all, 7, kChoices), (Values{4, 11, 6, 1}));
    }
  }
}

TEST_P(RouterTest, Refusals) {
  const Tensor logits = input({2, 12}, DType::kFp32), bias = input({12}, DType::kFp32);
  const Tensor choice = output({2, 4}, DType::kInt32), weight = output({2, 4}, DType::kFp32);
  const RouterTopk op{.logits = logits, .choice = choice, .weight = weight};
  const auto expect_change_refused = [&](auto&& change, std::string_view part) {
    RouterTopk changed = op;
    change(changed);
    expect_refused(changed, part);
  };
  expect_change_refused([&](RouterTopk& o) { o.expert_bias = bias; }, "op.expert_bias: expected absent");
  expect_change_refused([](RouterTopk& o) { o.num_groups = 5; }, "op.num_groups");
  expect_change_refused([](RouterTopk& o) { o.num_groups = 3, o.group_topk = 3; }, "op.group_topk");
  expect_change_refused([](RouterTopk& o) { o.num_groups = 2, o.group_topk = 4; }, "op.group_topk");
  expect_change_refused([](RouterTopk& o) { o.num_groups = 4; }, "op.num_groups: expected groups with at least");
  expect_change_refused([](RouterTopk& o) { o.scaling_factor = 0; }, "op.scaling_factor");
  expect_change_refused([&](RouterTopk& o) { o.choice = output({2, 13}, DType::kInt32); }, "op.choice");
  expect_change_refused([&](RouterTopk& o) { o.logits = input({2, 1025}, DType::kFp32); }, "op.logits");
  expect_refused(RouterLosses{.logits = logits}, "op.aux: expected one of op.aux and op.z");
}

}  // namespace
}  // namespace megalith::test

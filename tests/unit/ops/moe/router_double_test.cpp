// The router in fp64: its logits, and choices, weights, gradients and losses of fp64 logits.
#include "moe/ops/router_logits.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tests/unit/ops/moe/router_cases.h"

namespace megalith::test {
namespace {

class RouterLogitsTest : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Backends, RouterLogitsTest, testing::ValuesIn(op_cases()), name_of_case);

TEST_P(RouterLogitsTest, AreProductsInFp64) {
  for (const auto& [tokens, experts, hidden] :
       {std::array<std::int64_t, 3>{1, 1, 1}, {5, 3, 17}, {33, 8, 64}, {70, 65, 130}, {0, 4, 8}}) {
    const Tensor x = input({tokens, hidden}), weight = input({experts, hidden});
    const Tensor logits = output({tokens, experts}, DType::kFp64);
    run(RouterLogits{.x = x, .weight = weight, .logits = logits});
    const Values a = values(x), b = values(weight), got = values(logits);
    for (std::int64_t i = 0; i < tokens * experts; ++i) {
      double sum = 0, size = 0;
      for (std::int64_t h = 0; h < hidden; ++h) {
        const double term = a[static_cast<std::size_t>(i / experts * hidden + h)] *
                            b[static_cast<std::size_t>(i % experts * hidden + h)];
        sum += term, size += std::abs(term);
      }
      EXPECT_NEAR(got[static_cast<std::size_t>(i)], sum, size * static_cast<double>(hidden) * 0x1p-53);
    }
  }
}

class RouterDoubleTest : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Backends, RouterDoubleTest, testing::ValuesIn(op_cases(DType::kFp32)), name_of_case);

// Logits whose differences fp32 does not hold: there the first experts would win.
TEST_P(RouterDoubleTest, ChoosesByFp64) {
  constexpr std::int64_t kTokens = 3, kChoices = 4;
  for (const std::int64_t experts : {12, 130, 300, 1024}) {
    for (const RouterScore score : kScores) {
      for (const std::int64_t groups : {1, 2}) {
        Values x;
        for (std::int64_t i = 0; i < kTokens * experts; ++i) x.push_back(1 + 1e-11 * static_cast<double>(i % experts));
        const Tensor choice = output({kTokens, kChoices}, DType::kInt32), weight = output(choice.shape, DType::kFp32);
        run(RouterTopk{.logits = input({kTokens, experts}, DType::kFp64, x),
                       .choice = choice,
                       .weight = weight,
                       .score = score,
                       .num_groups = groups,
                       .group_topk = 1});
        Values want;
        for (std::int64_t t = 0; t < kTokens; ++t) {
          for (std::int64_t k = 1; k <= kChoices; ++k) want.push_back(static_cast<double>(experts - k));
        }
        EXPECT_EQ(values(choice), want) << experts;
        const double each = score == RouterScore::kSoftmax ? 1 / static_cast<double>(experts) : 1.0 / kChoices;
        for (const double got : values(weight)) EXPECT_NEAR(got, each, 1e-7);
      }
    }
  }
}

// For logits that fp32 holds, gradients and losses are those of the router in fp32, up to its rounding.
TEST_P(RouterDoubleTest, GradientsAndLossesAreThoseOfFp32) {
  constexpr std::int64_t kTokens = 9, kExperts = 40, kChoices = 3;
  Values x = normal(kTokens * kExperts, 2);
  for (double& value : x) value = static_cast<double>(static_cast<float>(value));
  const Tensor loads = input({kExperts}, DType::kFp32), d_weight = input({kTokens, kChoices}, DType::kFp32);
  const MicrobatchParameters* const parameters = device_struct(MicrobatchParameters{.router_scale = 0.25f});
  for (const RouterScore score : kScores) {
    std::array<Values, 3> results[2];
    for (const DType dtype : {DType::kFp32, DType::kFp64}) {
      const Tensor logits = input({kTokens, kExperts}, dtype, x);
      const Tensor choice = output({kTokens, kChoices}, DType::kInt32), weight = output(choice.shape, DType::kFp32);
      run(RouterTopk{.logits = logits, .choice = choice, .weight = weight, .score = score});
      const Tensor chosen = input(choice.shape, DType::kInt32, values(choice));
      const Tensor d_logits = output({kTokens, kExperts}, DType::kFp32);
      run(RouterTopkBackward{.logits = logits,
                             .choice = chosen,
                             .weight = input(weight.shape, DType::kFp32, values(weight)),
                             .d_weight = d_weight,
                             .loads = loads,
                             .parameters = parameters,
                             .d_logits = d_logits,
                             .score = score,
                             .z_scale = 0.5f});
      const Values gradients = values(d_logits);  // the next op's check overwrites outputs
      const Tensor aux = inout({1}, DType::kFp32, {0.0}), z = inout({1}, DType::kFp32, {0.0});
      run(RouterLosses{.logits = logits, .loads = loads, .aux = aux, .z = z, .score = score, .z_scale = 0.5f});
      results[dtype == DType::kFp64 ? 1 : 0] = {gradients, values(aux), values(z)};
    }
    for (std::size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(results[0][i].size(), results[1][i].size());
      for (std::size_t j = 0; j < results[0][i].size(); ++j) {
        const double want = results[0][i][j];
        EXPECT_NEAR(results[1][i][j], want, 1e-5 * std::max(1.0, std::abs(want)));
      }
    }
  }
}

}  // namespace
}  // namespace megalith::test

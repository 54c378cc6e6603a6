// The router's gradients and losses, and their references by central differences.
#include <cmath>
#include <numeric>

#include "tests/reference/cross_entropy.h"
#include "tests/support/central_difference.h"
#include "tests/unit/ops/moe/router_cases.h"

namespace megalith::test {
namespace {

// Terms of a token's gradient.
struct Token {
  Values logits, d_weight, loads;
  reference::RouterSettings with;
  double aux = 0, z = 0;  // aux: factor of the gradient, 0 without the loss; z: with its scale
};

struct Gradient {
  reference::RouterExperts chosen;
  Values weight, d_logits;
  Values size;  // sizes of the terms whose differences form d_logits, times their roundings
};

Gradient gradient_of(const Token& token) {
  const reference::RouterSettings& with = token.with;
  const Values &row = token.logits, &n = token.loads;
  Gradient result{.chosen = reference::choose_experts(row, {}, with).experts};
  result.weight = reference::router_weights(row, result.chosen, with);
  const Values of_weights = reference::router_weights_gradient(row, result.chosen, with, token.d_weight);
  const Values of_balance = reference::balance_loss_gradient(row, n, with.is_sigmoid);
  const Values of_z = reference::z_loss_gradient(row);

  const Roundings roundings(row);
  const auto of_score = [&](std::size_t e) { return with.is_sigmoid ? kSigmoidRoundings : roundings.of(row[e]); };
  const Values p = reference::softmax(row);
  const Values balance = with.is_sigmoid ? reference::normalised(reference::sigmoid(row)) : p;
  const double lse = reference::log_sum_exp(row);
  const double lse_size = std::abs(roundings.max) + std::abs(lse - roundings.max) + roundings.of_sum;
  double dot = 0, mean = 0;
  for (std::size_t k = 0; k < result.weight.size(); ++k) dot += result.weight[k] * std::abs(token.d_weight[k]);
  for (std::size_t e = 0; e < n.size(); ++e) mean += n[e] * balance[e] * of_score(e);
  for (std::size_t e = 0; e < n.size(); ++e) {
    result.d_logits.push_back(of_weights[e] + token.aux * of_balance[e] + token.z * of_z[e]);
    result.size.push_back((with.over_all ? p[e] * dot * roundings.of(row[e]) : 0) +
                          token.aux * balance[e] * (n[e] * of_score(e) + mean) +
                          token.z * 2 * p[e] * lse_size * roundings.of(row[e]));
  }
  for (std::size_t k = 0; k < result.weight.size(); ++k) {
    const double term = result.weight[k] * (std::abs(token.d_weight[k]) + dot / with.scaling);
    result.size[result.chosen[k]] += term * (with.is_sigmoid ? 2 : 1);
  }
  return result;
}

class RouterGradientTest : public RouterOpTest {
 protected:
  struct Losses {
    bool aux = false;
    float z = 0;
  };
  void backward(const Routing& routing, RouterScore score, float scaling, const Losses& losses, bool in_place = false);
  void losses(const Routing& routing, RouterScore score);
  void relative_loads(const Routing& sizes, bool each, bool counted, bool adds);
  Tensor some_loads(std::int64_t experts) {
    Values loads;
    for (std::int64_t e = 0; e < experts; ++e)
      loads.push_back(e % 5 == 1 ? 0 : static_cast<double>(random()() % 50) / 32);
    return input({experts}, DType::kFp32, loads);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RouterGradientTest, testing::ValuesIn(op_cases(DType::kFp32)), name_of_case);

void RouterGradientTest::backward(const Routing& routing, RouterScore score, float scaling, const Losses& with_losses,
                                  bool in_place) {
  SCOPED_TRACE(testing::Message() << routing.tokens << " x " << routing.experts << " to " << routing.choices
                                  << ", score " << static_cast<int>(score));
  const std::int64_t experts = routing.experts;
  const reference::RouterSettings with = settings(routing, score, scaling);
  const Tensor drawn = separate_logits(routing, with, {});
  const Values x = values(drawn);
  const Tensor loads = some_loads(experts);
  const Values n = values(loads);
  const double loss_scale = 0.25, aux = with_losses.aux ? loss_scale : 0,
               z = static_cast<double>(with_losses.z) * loss_scale;
  const Tensor d_weight = input({routing.tokens, routing.choices}, DType::kFp32);
  const Values d_weights = values(d_weight);
  Values choices, weights, want, size;
  for (std::int64_t t = 0; t < routing.tokens; ++t) {
    const Gradient gradient = gradient_of({.logits = row_of(x, t, experts),
                                           .d_weight = row_of(d_weights, t, routing.choices),
                                           .loads = n,
                                           .with = with,
                                           .aux = aux,
                                           .z = z});
    choices.insert(choices.end(), gradient.chosen.begin(), gradient.chosen.end());
    weights.insert(weights.end(), gradient.weight.begin(), gradient.weight.end());
    want.insert(want.end(), gradient.d_logits.begin(), gradient.d_logits.end());
    size.insert(size.end(), gradient.size.begin(), gradient.size.end());
  }
  const Tensor choice = input(d_weight.shape, DType::kInt32, choices);
  const Tensor logits = in_place ? inout(drawn.shape, DType::kFp32, x) : drawn;
  RouterTopkBackward op{.logits = logits,
                        .choice = choice,
                        .weight = input(d_weight.shape, DType::kFp32, weights),
                        .d_weight = d_weight,
                        .d_logits = in_place ? logits : output(logits.shape, DType::kFp32),
                        .score = score,
                        .scaling_factor = scaling,
                        .z_scale = with_losses.z};
  if (aux > 0) op.loads = loads;
  if (aux > 0 || z > 0)
    op.parameters = device_struct(MicrobatchParameters{.router_scale = static_cast<float>(loss_scale)});
  if (!needs_logits(op)) op.logits = {};
  Idles idle;
  const bool has_losses = aux > 0 || z > 0;  // which padding has not
  if (routing.choices == 1 && score == RouterScore::kSoftmaxOfChosen && !has_losses)
    idle = {{choice, "one choice always has weight 1"}};
  run(op, idle);
  expect_close(op.d_logits, want, {.length = experts, .magnitude = size, .what = "d_logits"});
}

TEST_P(RouterGradientTest, Backward) {
  for (const Routing& routing : {Routing{0, 8, 2}, Routing{7, 3, 1}, Routing{3, 3, 3}, Routing{9, 64, 8},
                                 Routing{17, 128, 8}, Routing{5, 130, 6}, Routing{3, 256, 16}, Routing{2, 300, 16}}) {
    for (const RouterScore score : kScores) {
      backward(routing, score, 2, {});
      backward(routing, score, 1, {.aux = true});
      backward(routing, score, 1, {.z = 0.5f});
      backward(routing, score, 2, {.aux = true, .z = 0.25f});
    }
  }
}

TEST_P(RouterGradientTest, BackwardInPlace) {
  for (const std::int64_t experts : {10, 64}) {
    for (const RouterScore score : kScores) backward({9, experts, 4}, score, 1, {.aux = true, .z = 0.25f}, true);
  }
}

// On the CPU: a build whose compiler fuses a product with the sum after it would give other bits.
TEST_P(RouterGradientTest, ProductsAreRoundedAheadOfSums) {
  if (device() != DeviceType::kCpu) GTEST_SKIP() << "compilers of GPUs fuse";
  constexpr std::int64_t kTokens = 64;
  const Tensor weight = input({kTokens, 2}, DType::kFp32), d_weight = input({kTokens, 2}, DType::kFp32);
  Values choices, want;
  const Values w = values(weight), d = values(d_weight);
  int fused = 0;
  for (std::size_t t = 0; t < kTokens; ++t) {
    const auto at = [t](const Values& of, std::size_t k) { return static_cast<float>(of[2 * t + k]); };
    const volatile float first = at(w, 0) * at(d, 0), second = at(w, 1) * at(d, 1);
    const volatile float dot = first + second;
    fused += std::fma(at(w, 1), at(d, 1), first) != dot ? 1 : 0;
    for (const std::size_t k : {0u, 1u}) {
      const volatile float difference = at(d, k) - dot;
      const volatile float product = at(w, k) * difference;
      choices.push_back(static_cast<double>(k));
      want.push_back(static_cast<double>(product));
    }
  }
  ASSERT_GT(fused, 0);
  const RouterTopkBackward op{.choice = input(weight.shape, DType::kInt32, choices),
                              .weight = weight,
                              .d_weight = d_weight,
                              .d_logits = output({kTokens, 2}, DType::kFp32),
                              .score = RouterScore::kSoftmaxOfChosen};
  run(op);
  EXPECT_EQ(values(op.d_logits), want);
}

// More tokens than the blocks of a grid process at a time.
TEST_P(RouterGradientTest, ManyTokens) {
  backward({9001, 4, 2}, RouterScore::kSoftmax, 1, {.aux = true});
  losses({9001, 4, 2}, RouterScore::kSoftmax);
}

void RouterGradientTest::losses(const Routing& routing, RouterScore score) {
  SCOPED_TRACE(testing::Message() << routing.tokens << " x " << routing.experts << ", score "
                                  << static_cast<int>(score));
  const bool is_sigmoid = score == RouterScore::kSigmoid;
  const Tensor logits = input({routing.tokens, routing.experts}, DType::kFp32, 2.0);
  const Tensor loads = some_loads(routing.experts);
  const Values x = values(logits), n = values(loads);
  RouterLosses op{.logits = logits,
                  .loads = loads,
                  .aux = inout({1}, DType::kFp32, {3.0}),
                  .z = inout({1}, DType::kFp32, {-2.0}),
                  .score = score,
                  .z_scale = 0.0625f};
  double aux = 0, aux_size = 0, z = 0, z_size = 0;
  for (std::int64_t t = 0; t < routing.tokens; ++t) {
    const Values row = row_of(x, t, routing.experts);
    const Roundings roundings(row);
    const Values p = is_sigmoid ? reference::normalised(reference::sigmoid(row)) : reference::softmax(row);
    for (std::size_t e = 0; e < n.size(); ++e) {
      aux_size += n[e] * p[e] * (is_sigmoid ? kSigmoidRoundings : roundings.of(row[e]));
    }
    aux += reference::balance_loss(row, n, is_sigmoid);
    z += 0.0625 * reference::z_loss(row);
    const double lse = std::abs(reference::log_sum_exp(row));
    z_size += 0.0625 * 2 * lse * (std::abs(roundings.max) + std::abs(lse - roundings.max) + roundings.of_sum);
  }
  run(op);
  const auto expect_sums = [&](const Tensor& aux_sum, const Tensor& z_sum) {
    if (aux_sum)
      expect_close(aux_sum, {3 + aux}, {.length = routing.experts, .magnitude = {3 + aux_size}, .what = "aux"});
    if (z_sum) expect_close(z_sum, {z - 2}, {.length = routing.experts, .magnitude = {2 + z_size}, .what = "z"});
  };
  expect_sums(op.aux, op.z);
  const Tensor z_sum = op.z;
  op.z = {};
  run(op);
  expect_sums(op.aux, {});
  op.z = z_sum, op.aux = {};
  run(op);
  expect_sums({}, op.z);
}

TEST_P(RouterGradientTest, Losses) {
  for (const Routing& routing :
       {Routing{5, 1, 1}, Routing{7, 3, 1}, Routing{40, 64, 8}, Routing{17, 130, 8}, Routing{3, 300, 8}}) {
    for (const RouterScore score : kScores) losses(routing, score);
  }
}

TEST_P(RouterGradientTest, LossesOfNoTokens) {
  const Tensor aux = inout({1}, DType::kFp32, {3.0}), z = inout({1}, DType::kFp32, {-2.0});
  launch(stream(),
         ready(RouterLosses{
             .logits = input({0, 8}, DType::kFp32), .loads = some_loads(8), .aux = aux, .z = z, .z_scale = 1}));
  expect_untouched(aux);
  expect_untouched(z);
}

// A row for each or one for all, on top of earlier counts, written or added.
TEST_P(RouterGradientTest, RelativeLoads) {
  for (const std::int64_t experts : {2, 3, 300}) {
    for (const std::int64_t rows : {0, 1, 3}) {
      for (const bool each : {false, true}) {
        for (const bool counted : {false, true}) {
          for (const bool adds : {false, true}) {
            if (each && (rows == 1 || counted)) continue;
            relative_loads({.tokens = rows, .experts = experts, .choices = 1}, each, counted, adds);
          }
        }
      }
    }
  }
}

void RouterGradientTest::relative_loads(const Routing& sizes, bool each, bool counted, bool adds) {
  const std::int64_t experts = sizes.experts, rows = sizes.tokens, tables = each ? rows : 1;
  SCOPED_TRACE(testing::Message() << rows << " x " << experts << " of " << tables << counted << adds);
  Values offsets, before, want, n;
  for (std::int64_t e = 0; e < experts; ++e) before.push_back(counted ? static_cast<double>(random()() % 100) : 0);
  for (std::int64_t row = 0; row < tables; ++row) {
    offsets.push_back(static_cast<double>(row));
    for (std::int64_t e = 0; e < experts; ++e) {
      n.push_back(static_cast<double>(e == 2 ? 0 : 1 + random()() % 50));
      offsets.push_back(offsets.back() + n.back());
      n.back() += before[static_cast<std::size_t>(e)];
    }
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    const Values of_row = row_of(n, each ? row : 0, experts);
    const double mean = std::accumulate(of_row.begin(), of_row.end(), 0.0) / static_cast<double>(experts);
    for (const double count : of_row) want.push_back((adds ? 2 : 0) + 0.5 * count / mean);
  }
  const Tensor loads =
      adds ? inout({rows, experts}, DType::kFp32, Values(want.size(), 2.0)) : output({rows, experts}, DType::kFp32);
  RelativeLoads op{
      .offsets = input({tables, experts + 1}, DType::kInt32, offsets), .loads = loads, .coeff = 0.5f, .adds = adds};
  if (counted) op.counted = input({experts}, DType::kInt32, before);
  run(op);
  expect_close(loads, want, {.length = 3, .what = "loads"});
}

TEST(RouterReference, Gradients) {
  const Values logits = {0.3, -1.2, 2.0, 0.5, -0.7, 1.1}, d = {0.4, -1.3, 0.9}, counts = {3, 0, 7, 1, 2, 5};
  for (const RouterScore score : kScores) {
    for (const std::int64_t choices : {1, 3}) {
      const reference::RouterSettings with = settings({1, 6, choices}, score, 2.5f);
      const reference::RouterExperts experts = reference::choose_experts(logits, {}, with).experts;
      const Values dw(d.begin(), d.begin() + choices);
      expect_gradient(
          [&](const Values& x) {
            const Values w = reference::router_weights(x, experts, with);
            return std::inner_product(w.begin(), w.end(), dw.begin(), 0.0);
          },
          logits, reference::router_weights_gradient(logits, experts, with, dw));
    }
    const bool is_sigmoid = score == RouterScore::kSigmoid;
    expect_gradient([&](const Values& x) { return reference::balance_loss(x, counts, is_sigmoid); }, logits,
                    reference::balance_loss_gradient(logits, counts, is_sigmoid));
  }
  expect_gradient(reference::z_loss, logits, reference::z_loss_gradient(logits));
}

}  // namespace
}  // namespace megalith::test

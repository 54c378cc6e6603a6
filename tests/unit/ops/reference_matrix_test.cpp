// The references of attention, norms and RoPE themselves, by central differences and by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "tests/reference/attention.h"
#include "tests/reference/gemm.h"
#include "tests/reference/norm.h"
#include "tests/reference/rope.h"
#include "tests/support/central_difference.h"

namespace megalith::test {
namespace {

using Vector = std::vector<double>;

Vector normal(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> distribution;
  Vector x(count);
  for (double& value : x) value = distribution(generator);
  return x;
}

double inner(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST(ReferenceMatrix, GemmByHand) {
  const Vector a = {1, 2, 3, 4, 5, 6}, b = {1, 0, 2, 1, 0, 3};
  EXPECT_EQ(reference::gemm(a, b, {.m = 2, .n = 2, .k = 3}), (Vector{5, 11, 14, 23}));
  EXPECT_EQ(reference::gemm(a, b, {.m = 2, .n = 2, .k = 3, .transpose_b = true}), (Vector{7, 10, 16, 22}));
  EXPECT_EQ(reference::gemm(a, b, {.m = 2, .n = 2, .k = 3, .transpose_a = true}), (Vector{7, 18, 10, 22}));
}

TEST(ReferenceMatrix, AttentionGradient) {
  const reference::AttentionSizes z{
      .samples = 2, .queries = 4, .keys = 4, .heads = 4, .kv_heads = 2, .dim = 3, .scale = 0.7};
  const Vector q = normal(96, 1), k = normal(48, 2), v = normal(48, 3), d_out = normal(96, 4);
  const auto forward = reference::attention(q, k, v, z);
  const auto gradient = reference::attention_gradient(q, k, v, d_out, {forward.out, forward.lse}, z);
  expect_gradient([&](const Vector& x) { return inner(reference::attention(x, k, v, z).out, d_out); }, q, gradient.dq);
  expect_gradient([&](const Vector& x) { return inner(reference::attention(q, x, v, z).out, d_out); }, k, gradient.dk);
  expect_gradient([&](const Vector& x) { return inner(reference::attention(q, k, x, z).out, d_out); }, v, gradient.dv);
}

TEST(ReferenceMatrix, AttentionByHand) {
  // One head of dim 1: the second query weighs two values by exp(0) and exp(ln 3).
  const auto r = reference::attention({1, 1}, {0, std::log(3.0)}, {4, 8},
                                      {.samples = 1, .queries = 2, .keys = 2, .heads = 1, .kv_heads = 1, .dim = 1});
  EXPECT_NEAR(r.out[0], 4, 1e-14);
  EXPECT_NEAR(r.out[1], 7, 1e-14);
  EXPECT_NEAR(r.lse[1], std::log(4.0), 1e-14);
}

TEST(ReferenceMatrix, NormGradients) {
  const Vector x = normal(15, 5), weight = normal(5, 6), bias = normal(5, 7), dy = normal(15, 8);
  for (const bool centred : {false, true}) {
    const reference::NormSettings with{.length = 5, .eps = 0.1, .centred = centred};
    const auto forward = reference::norm(x, weight, bias, with);
    const Vector none, mean = centred ? forward.mean : none;
    const auto gradient =
        reference::norm_gradient(dy, x, weight, {.mean = mean, .rstd = forward.rstd, .d_residual = none});
    expect_gradient([&](const Vector& p) { return inner(reference::norm(p, weight, bias, with).y, dy); }, x,
                    gradient.dx);
    expect_gradient([&](const Vector& p) { return inner(reference::norm(x, p, bias, with).y, dy); }, weight,
                    gradient.d_weight);
    expect_gradient([&](const Vector& p) { return inner(reference::norm(x, weight, p, with).y, dy); }, bias,
                    gradient.d_bias);
  }
}

TEST(ReferenceMatrix, NormByHand) {
  const auto rms = reference::norm({3, 4}, {1, 2}, {}, {.length = 2, .eps = 0, .centred = false});
  EXPECT_NEAR(rms.y[0], 3 / std::sqrt(12.5), 1e-15);
  EXPECT_NEAR(rms.y[1], 8 / std::sqrt(12.5), 1e-15);
  const auto layer = reference::norm({1, 3}, {1, 2}, {10, 20}, {.length = 2, .eps = 0, .centred = true});
  EXPECT_NEAR(layer.y[0], 9, 1e-15);
  EXPECT_NEAR(layer.y[1], 22, 1e-15);
}

TEST(ReferenceMatrix, RopeGradientAndByHand) {
  const reference::RopeSizes z{.samples = 1, .tokens = 3, .heads = 2, .dim = 6, .rotary_dim = 4, .theta = 100};
  const Vector x = normal(36, 9), dy = normal(36, 10);
  expect_gradient([&](const Vector& p) { return inner(reference::rope(p, z, false).y, dy); }, x,
                  reference::rope(dy, z, true).y);
  // Position 1, pairs (0, 2) by 1 radian and (1, 3) by 100^(-1/2) = 0.1.
  const auto r = reference::rope(
      {1, 0, 0, 1}, {.samples = 1, .tokens = 1, .heads = 1, .dim = 4, .rotary_dim = 4, .theta = 100, .start = 1},
      false);
  EXPECT_NEAR(r.y[0], std::cos(1.0), 1e-15);
  EXPECT_NEAR(r.y[1], -std::sin(0.1), 1e-15);
  EXPECT_NEAR(r.y[2], std::sin(1.0), 1e-15);
  EXPECT_NEAR(r.y[3], std::cos(0.1), 1e-15);
}

}  // namespace
}  // namespace megalith::test

// The references themselves, by central differences.
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "tests/reference/activation.h"
#include "tests/reference/adamw.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/embedding.h"
#include "tests/reference/sampling.h"
#include "tests/support/central_difference.h"

namespace megalith::test {

TEST(ReferencePointwise, ActivationSlopes) {
  for (double x = -6; x <= 6; x += 0.37) {
    for (const bool exact : {false, true}) {
      expect_gradient([&](const std::vector<double>& v) { return reference::gelu(v[0], exact); }, {x},
                      {reference::gelu_slope(x, exact)});
    }
    expect_gradient([](const std::vector<double>& v) { return reference::silu(v[0]); }, {x},
                    {reference::silu_slope(x)});
  }
}

TEST(ReferencePointwise, GeluFormsAreCloseToEachOtherAndToKnownValues) {
  EXPECT_NEAR(reference::gelu(1, true), 0.841344746068543, 1e-15);  // Phi(1)
  for (double x = -6; x <= 6; x += 0.1) EXPECT_NEAR(reference::gelu(x, true), reference::gelu(x, false), 5e-4);
}

TEST(ReferencePointwise, CrossEntropyGradient) {
  const std::vector<double> logits = {0.3, -1.2, 4.0, 2.5, -7.0};
  for (std::size_t label = 0; label < logits.size(); ++label) {
    expect_gradient([&](const std::vector<double>& x) { return reference::cross_entropy(x, label); }, logits,
                    reference::cross_entropy_gradient(logits, label));
  }
}

TEST(ReferencePointwise, EmbeddingGradients) {
  const std::vector<double> tokens = {2, 0, 2, 2};
  const reference::EmbeddingSizes sizes{
      .vocabulary = 3, .positions = 2, .columns = 2, .rows_per_sample = 2, .start = 0};
  const std::vector<double> dy = {1, -2, 0.5, 3, 0.25, 7, -1, 2};
  const auto loss = [&](const std::vector<double>& table, const std::vector<double>& positions) {
    const std::vector<double> y = reference::embedding(tokens, table, positions, sizes);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
    return sum;
  };
  const std::vector<double> table = {1, 2, 3, 4, 5, 6};
  const std::vector<double> positions = {0.1, 0.2, 0.3, 0.4};
  expect_gradient(
      [&](const std::vector<double>& x) { return loss(x, positions); }, table,
      reference::sum_rows_by(dy, 2, 3, [&](std::size_t row) { return static_cast<std::size_t>(tokens[row]); }));
  expect_gradient([&](const std::vector<double>& x) { return loss(table, x); }, positions,
                  reference::sum_rows_by(dy, 2, 2, [](std::size_t row) { return row % 2; }));
}

// Worked by hand: m = 0.1 g, v = 0.001 g^2. Both corrected moments are those of g alone, and the step is lr times
// g/|g|.
TEST(ReferencePointwise, FirstAdamStepIsTheSignOfTheGradient) {
  const reference::AdamSettings with{.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 0, .weight_decay = 0.5};
  const reference::AdamState after = reference::adamw({.weight = 2}, -3, 1, with);
  EXPECT_NEAR(after.weight, 2 * (1 - 0.05) + 0.1, 1e-12);
  EXPECT_NEAR(after.first, -0.3, 1e-12);
  EXPECT_NEAR(after.second, 0.009, 1e-12);
}

TEST(ReferencePointwise, SamplingFilters) {
  const std::vector<double> logits = {std::log(1.0), std::log(4.0), std::log(3.0), std::log(2.0)};
  const auto all = reference::sampling_distribution(logits, {.temperature = 1, .top_k = 0, .top_p = 0});
  EXPECT_NEAR(all[1], 0.4, 1e-15);
  const auto two = reference::sampling_distribution(logits, {.temperature = 1, .top_k = 2, .top_p = 0});
  EXPECT_NEAR(two[1], 4.0 / 7, 1e-15);
  EXPECT_EQ(two[3], 0);
  const auto nucleus = reference::sampling_distribution(logits, {.temperature = 1, .top_k = 0, .top_p = 0.65});
  EXPECT_NEAR(nucleus[2], 3.0 / 7, 1e-15);
  EXPECT_EQ(nucleus[0] + nucleus[3], 0);
}

}  // namespace megalith::test

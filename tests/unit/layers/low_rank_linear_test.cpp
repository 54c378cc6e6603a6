// The test that CONTRIBUTING.md shows: a user's own layer against plain fp64 arithmetic, eagerly and replayed, on every
// backend of this build.
#include "tests/support/low_rank_linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/device_cases.h"
#include "tests/support/segment_harness.h"

namespace megalith {
namespace {

constexpr std::int64_t kRows = 5, kInputs = 7, kRank = 3, kOutputs = 4;

test::SegmentCase low_rank_case(DeviceType device) {
  return {.build =
              [](ParameterStore& store) {
                return std::make_unique<LowRankLinear>(
                    store,
                    LowRankLinear::Spec{.name = "adapter", .inputs = kInputs, .rank = kRank, .outputs = kOutputs});
              },
          .inputs = {{kRows, kInputs}},
          .device = device,
          .weight_std = 0.5f};
}

using Matrix = std::vector<double>;

// [m, k] x [k, n]
Matrix multiply(const Matrix& a, const Matrix& b, std::int64_t m, std::int64_t k, std::int64_t n) {
  Matrix c(static_cast<std::size_t>(m * n), 0.0);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t l = 0; l < k; ++l)
        c[static_cast<std::size_t>(i * n + j)] +=
            a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
  return c;
}

Matrix transpose(const Matrix& a, std::int64_t rows, std::int64_t columns) {
  Matrix t(a.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      t[static_cast<std::size_t>(j * rows + i)] = a[static_cast<std::size_t>(i * columns + j)];
  return t;
}

Matrix matrix(const std::vector<float>& values) { return {values.begin(), values.end()}; }

void expect_near(const std::vector<float>& got, const Matrix& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << i;
}

class LowRankLinearTest : public test::OnDevice<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Backends, LowRankLinearTest, testing::ValuesIn(test::devices()), test::name_of_device_case);

TEST_P(LowRankLinearTest, AgreesWithPlainArithmetic) {
  const test::SegmentResult r = test::run_segment(low_rank_case(device()), test::RunMode::kEager);
  const Matrix x = matrix(r.inputs[0]), dy = matrix(r.output_gradients[0]);
  ASSERT_EQ(r.names, (std::vector<std::string>{"adapter.a", "adapter.b"}));
  const Matrix a = matrix(r.weights[0]), b = matrix(r.weights[1]);
  const Matrix hidden = multiply(x, a, kRows, kInputs, kRank);
  const Matrix d_hidden = multiply(dy, transpose(b, kRank, kOutputs), kRows, kOutputs, kRank);
  expect_near(r.outputs[0], multiply(hidden, b, kRows, kRank, kOutputs));
  expect_near(r.input_gradients[0], multiply(d_hidden, transpose(a, kInputs, kRank), kRows, kRank, kInputs));
  expect_near(r.main_gradients[0], multiply(transpose(x, kRows, kInputs), d_hidden, kInputs, kRows, kRank));
  expect_near(r.main_gradients[1], multiply(transpose(hidden, kRows, kRank), dy, kRank, kRows, kOutputs));
}

TEST_P(LowRankLinearTest, ReplaysBitForBit) {
  const test::SegmentResult replayed = test::run_segment(low_rank_case(device()), test::RunMode::kReplay);
  EXPECT_GT(replayed.captured_ops, 0);
  EXPECT_EQ(replayed.replays, 3);
  test::expect_same_bits(test::run_segment(low_rank_case(device()), test::RunMode::kEager), replayed);
}

}  // namespace
}  // namespace megalith

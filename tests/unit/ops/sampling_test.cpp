#include "core/ops/token/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/sampling.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class SamplingTest : public OpTest {
 protected:
  Sample make(const Tensor& logits, std::int64_t vocab) {
    Sample op{.logits = logits,
              .vocab_size = vocab,
              .seed = 5,
              .position = device_struct(std::int32_t{0}),
              .out = output({logits.size(0)}, DType::kInt32)};
    return op;
  }
  // How often each token comes over many positions, one row each.
  Values count_draws(Sample op, std::int64_t draws) {
    const std::int64_t columns = op.logits.size(1);
    const Values row = values(op.logits.slice(0, 0, 1));
    Values repeated;
    constexpr std::int64_t kRows = 500;
    for (std::int64_t r = 0; r < kRows; ++r) repeated.insert(repeated.end(), row.begin(), row.end());
    op.logits = input({kRows, columns}, dtype(), repeated);
    op.out = output({kRows}, DType::kInt32);
    Values counts(static_cast<std::size_t>(columns));
    for (std::int32_t position = 0; position < draws / kRows; ++position) {
      op.position = device_struct(position);
      launch(stream(), ready(op));
      for (const double token : values(op.out)) ++counts[static_cast<std::size_t>(token)];
    }
    return counts;
  }
  // Pearson's chi-square; its mean is n - 1 and its variance 2 (n - 1). Tokens without probability must not come at
  // all.
  void expect_distribution(const Sample& op, const reference::SamplingSettings& with) {
    constexpr std::int64_t kDraws = 40000;
    const Values row = values(op.logits.slice(0, 0, 1).slice(1, 0, op.vocab_size));
    const Values probability = reference::sampling_distribution(row, with);
    const Values counts = count_draws(op, kDraws);
    double chi_square = 0, freedom = -1;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double expected = i < probability.size() ? probability[i] * kDraws : 0;
      if (expected == 0) {
        EXPECT_EQ(counts[i], 0) << "token " << i << " is filtered out";
        continue;
      }
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
      ++freedom;
    }
    EXPECT_LE(chi_square, freedom + 5 * std::sqrt(2 * freedom) + 1e-9);
  }
};
MEGALITH_OP_TESTS(SamplingTest);

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST_P(SamplingTest, TemperatureZeroTakesTheLargest) {
  const Tensor logits = input({5, 6}, dtype(),
                              {1,
                               3,
                               3,
                               2,
                               9,
                               9,  // a tie goes to the lower index, padding does not count
                               -5,
                               -4,
                               -4.5,
                               -7,
                               9,
                               9,  //
                               std::nan(""),
                               1,
                               2,
                               1,
                               9,
                               9,  // NaN is passed over
                               -kInf,
                               -kInf,
                               -kInf,
                               -100,
                               9,
                               9,  //
                               0,
                               kInf,
                               1,
                               kInf,
                               9,
                               9});
  const auto largest = [&](const Tensor& rows, std::int64_t vocab) {
    Sample op = make(rows, vocab);
    op.temperature = 0;
    run(op, {{op.position, "there is one candidate, nothing to draw"}});
    return values(op.out);
  };
  EXPECT_EQ(largest(logits, 4), (Values{1, 1, 2, 3, 1}));
  EXPECT_EQ(largest(logits.slice(1, 1, 3), 3), (Values{0, 0, 1, 2, 0}));
  EXPECT_EQ(largest(logits.slice(0, 0, 0), 4), Values{});
}

TEST_P(SamplingTest, TopOneAndFewAreTheLargest) {
  Values coarse = normal(40 * 300);  // so that many rows have several largest logits
  for (double& logit : coarse) logit = std::round(4 * logit) / 4;
  const Tensor logits = input({40, 300}, dtype(), coarse);
  Values want;
  for (auto row = coarse.begin(); row != coarse.end(); row += 300) {
    want.push_back(static_cast<double>(std::max_element(row, row + 300) - row));
  }
  Sample op = make(logits, 300);
  op.temperature = 0;
  const Idles idle = {{op.position, "there is one candidate, nothing to draw"}};
  run(op, idle);
  EXPECT_EQ(values(op.out), want);
  op.temperature = 1, op.top_k = 1;
  run(op, idle);
  EXPECT_EQ(values(op.out), want);
  op.top_k = 0, op.top_p = 1e-6f;
  run(op, idle);
  EXPECT_EQ(values(op.out), want);
  op.top_p = 0, op.temperature = 1e-30f;  // all weights underflow except the largest ones, which are drawn
  run(op);
  const Values drawn = values(op.out);
  std::size_t others = 0;
  for (std::size_t row = 0; row < 40; ++row) {
    EXPECT_EQ(coarse[row * 300 + static_cast<std::size_t>(drawn[row])],
              coarse[row * 300 + static_cast<std::size_t>(want[row])]);
    others += drawn[row] != want[row] ? 1 : 0;
  }
  EXPECT_GT(others, 0u);
}

// A row draws by its stream, wherever it is.
TEST_P(SamplingTest, RowsWithAStreamDrawAsTheRowsOfThatIndex) {
  constexpr std::int64_t kRows = 64, kColumns = 300;
  Values repeated;
  const Values row = normal(kColumns);
  for (std::int64_t r = 0; r < kRows; ++r) repeated.insert(repeated.end(), row.begin(), row.end());
  Sample op = make(input({kRows, kColumns}, dtype(), repeated), kColumns);
  launch(stream(), ready(op));
  const Values by_index = values(op.out);
  Values streams, want;
  for (std::int64_t r = 0; r < kRows; ++r) {
    streams.push_back(static_cast<double>(5 * r % kRows));
    want.push_back(by_index[static_cast<std::size_t>(5 * r % kRows)]);
  }
  op.streams = input({kRows}, DType::kInt32, streams);
  launch(stream(), ready(op));
  EXPECT_EQ(values(op.out), want);
  EXPECT_NE(want, by_index);
}

TEST_P(SamplingTest, FollowsTheDistribution) {
  Sample op = make(input({1, 12}, 1.5), 10);
  expect_distribution(op, {.temperature = 1, .top_k = 0, .top_p = 0});
  op.temperature = 0.7f;
  expect_distribution(op, {.temperature = static_cast<double>(op.temperature), .top_k = 0, .top_p = 0});
  op.top_k = 4;
  expect_distribution(op, {.temperature = static_cast<double>(op.temperature), .top_k = 4, .top_p = 0});
  op.top_p = 0.6f;
  expect_distribution(op, {.temperature = static_cast<double>(op.temperature), .top_k = 4, .top_p = 0.6});
  op.top_k = 0, op.temperature = 2;
  expect_distribution(op, {.temperature = 2, .top_k = 0, .top_p = 0.6});
}

// The filters keep exactly the specified tokens, also if the sorted prefix grows past its first 64.
TEST_P(SamplingTest, FiltersAreExact) {
  const Tensor logits = input({1, 700}, 0.3);  // flat: a nucleus of hundreds
  const Values row = values(logits);
  for (const auto& [top_k, top_p] :
       {std::pair{0, 0.5f}, std::pair{0, 0.05f}, std::pair{300, 0.f}, std::pair{300, 0.7f}}) {
    Sample op = make(logits, 700);
    op.top_k = top_k, op.top_p = top_p;
    const Values probability = reference::sampling_distribution(
        row, {.temperature = 1, .top_k = static_cast<std::size_t>(top_k), .top_p = static_cast<double>(top_p)});
    double kept = 0;
    for (const double p : probability) kept += p > 0 ? 1 : 0;
    const Values counts = count_draws(op, 6000);
    double seen = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (probability[i] == 0) {
        ASSERT_EQ(counts[i], 0) << "token " << i << " is filtered out";
      }
      seen += counts[i] > 0 ? 1 : 0;
    }
    EXPECT_GT(seen, 0.98 * kept);
  }
}

TEST_P(SamplingTest, TiesGoToTheLowerIndex) {
  Sample op = make(input({1, 9}, dtype(), Values(9, 0.5)), 9);
  op.top_k = 3;
  Values counts = count_draws(op, 2000);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(counts[i] > 0, i < 3) << i;
  op.top_k = 0, op.top_p = 0.5f;  // five of nine
  counts = count_draws(op, 2000);
  for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(counts[i] > 0, i < 5) << i;
  // At a temperature where all weights round to 1, the logits still rank the tokens.
  Sample hot = make(input({1, 4}, dtype(), {1, 2, 4, 3}), 4);
  hot.temperature = 1e12f, hot.top_k = 2;
  counts = count_draws(hot, 2000);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(counts[i] > 0, i >= 2) << i;
}

TEST_P(SamplingTest, KeyedBySeedPositionAndRow) {
  Sample op = make(input({64, 1000}, dtype(), Values(64000, 0.0)), 1000);
  run(op);
  const Values base = values(op.out);
  run(op);
  EXPECT_EQ(values(op.out), base);
  int equal = 0;
  for (std::size_t r = 1; r < base.size(); ++r) equal += base[r] == base[0] ? 1 : 0;
  EXPECT_LT(equal, 5);
  op.position = device_struct(std::int32_t{1});
  run(op);
  EXPECT_NE(values(op.out), base);
  op.position = device_struct(std::int32_t{0}), op.seed = 6;
  run(op);
  EXPECT_NE(values(op.out), base);
}

TEST_P(SamplingTest, NotANumberAndInfinity) {
  Sample op = make(input({3, 4}, dtype(),
                         {std::nan(""), 0, 0, -kInf,  //
                          0, kInf, 1, kInf,           //
                          -kInf, -kInf, -kInf, 3}),
                   4);
  run(op);
  const Values out = values(op.out);
  EXPECT_TRUE(out[0] == 1 || out[0] == 2);
  EXPECT_EQ(out[1], 1);
  EXPECT_EQ(out[2], 3);
  Sample none = make(input({2, 4}, dtype(), {0, 1, 2, 3, -kInf, std::nan(""), -kInf, -kInf}), 4);
  expect_kernel_error(none, ExitCode::kNumeric, "logits of row 1: expected a number above -inf");
}

TEST_P(SamplingTest, PositionsGoOn) {
  NextPosition op{.start = device_struct(std::int32_t{3}), .position = device_struct(std::int32_t{8})};
  run(op);
  EXPECT_EQ(read_struct(op.start), 8);
  EXPECT_EQ(read_struct(op.position), 9);
}

TEST_P(SamplingTest, Refusals) {
  const Sample good = make(input({2, 8}), 8);
  Sample op = good;
  op.vocab_size = 0;
  expect_refused(op, "op.vocab_size: expected 1 to 8, got 0");
  op = good, op.temperature = -1;
  expect_refused(op, "op.temperature");
  op = good, op.top_p = 1.5f;
  expect_refused(op, "op.top_p: expected 0 to 1, got 1.5");
  op = good, op.top_k = -1;
  expect_refused(op, "op.top_k");
  op = good, op.workspace = output({8}, DType::kUint8);
  expect_kernel_error(op, ExitCode::kInternal, "op.workspace: expected at least 64 bytes");
}

}  // namespace
}  // namespace megalith::test

#include "core/ops/loss/cross_entropy.h"

#include <cmath>
#include <limits>

#include "tests/reference/cross_entropy.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class CrossEntropyTest : public OpTest {
 protected:
  const MicrobatchParameters* scale_by(float scale) { return device_struct(MicrobatchParameters{.loss_scale = scale}); }
};
MEGALITH_OP_TESTS(CrossEntropyTest);

TEST_P(CrossEntropyTest, LossAndGradient) {
  // Past a vector, past a block of 1024 columns, and with rising maxima so that later blocks rescale the sum.
  for (const std::int64_t columns : {1, 2, 8, 9, 255, 1023, 1024, 1025, 3000}) {
    for (const std::int64_t rows : {0, 1, 3}) {
      const std::int64_t vocab = columns, padded = columns + 5, width = padded + 3;
      Values given = normal(rows * width, 4);
      for (std::int64_t i = 0; i < rows * width; ++i) {
        const std::int64_t c = i % width;
        given[static_cast<std::size_t>(i)] += 0.01 * static_cast<double>(c);
        if (c >= vocab) given[static_cast<std::size_t>(i)] = 1e30;  // padding must not count
      }
      const Tensor whole = inout({rows, width}, dtype(), given), logits = whole.slice(1, 0, padded);
      const Tensor loss = output({rows}, DType::kFp32);
      Values labels;
      for (std::int64_t r = 0; r < rows; ++r) labels.push_back(static_cast<double>(r == 1 ? vocab - 1 : r * 7 % vocab));
      const Tensor label = input({rows}, DType::kInt32, labels);
      const float scale = 0.125f;
      CrossEntropy op{.logits = logits,
                      .labels = label,
                      .loss = loss,
                      .vocab_size = vocab,
                      .write_gradient = true,
                      .parameters = scale_by(scale)};
      const Values x = values(logits);
      Values want_loss, loss_size, want, size;
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto at = static_cast<std::size_t>(labels[static_cast<std::size_t>(r)]);
        const std::span<const double> row(x.data() + r * padded, static_cast<std::size_t>(vocab));
        const double lse = reference::log_sum_exp(row);
        const double max = *std::max_element(row.begin(), row.end());
        want_loss.push_back(reference::cross_entropy(row, at));
        // max + log(sum) - x, and log(sum) carries the error of the terms exp(x - max).
        loss_size.push_back(std::abs(max) + std::abs(lse - max) + std::abs(row[at]) + 1);
        const Values gradient = reference::cross_entropy_gradient(row, at);
        for (std::size_t c = 0; c < gradient.size(); ++c) {
          want.push_back(scale * gradient[c]);
          // The exponent x - max is a difference of fp32 numbers; its rounding is the relative error of the
          // exponential.
          const double probability = std::exp(row[c] - lse);
          size.push_back(scale * (probability * (1 + std::abs(row[c]) + std::abs(max)) + (c == at ? 1 : 0)));
        }
        for (std::int64_t c = vocab; c < padded; ++c) want.push_back(0), size.push_back(0);
      }
      run(op);
      expect_close(loss, want_loss, {.length = vocab, .magnitude = loss_size, .what = "loss"});
      expect_close(logits, want, {.length = vocab, .magnitude = size, .what = "gradient"});
      expect_untouched(whole.slice(1, padded, 3));
      const Values first = values(loss);
      op.write_gradient = false, op.parameters = nullptr;
      run(op);
      EXPECT_EQ(values(loss), first);
      expect_untouched(whole);
    }
  }
}

TEST_P(CrossEntropyTest, IgnoredTokens) {
  const Tensor logits = inout({3, 20}, dtype(), normal(60)), loss = output({3}, DType::kFp32);
  const Tensor labels = input({3}, DType::kInt32, {-1, 4, -100});
  run(CrossEntropy{.logits = logits,
                   .labels = labels,
                   .loss = loss,
                   .vocab_size = 18,
                   .write_gradient = true,
                   .parameters = scale_by(1)});
  const Values gradient = values(logits), losses = values(loss);
  EXPECT_EQ(losses[0], 0);
  EXPECT_EQ(losses[2], 0);
  EXPECT_GT(losses[1], 0);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(gradient[i], 0);
    EXPECT_EQ(gradient[40 + i], 0);
  }
}

TEST_P(CrossEntropyTest, NotANumberAnywhereIsANotANumberLoss) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {std::nan(""), inf}) {
    for (const std::int64_t at : {0, 7, 1029, 1099}) {
      Values given = normal(1100);
      given[static_cast<std::size_t>(at)] = bad;
      const Tensor logits = inout({1, 1100}, dtype(), given), loss = output({1}, DType::kFp32);
      const Tensor labels = input({1}, DType::kInt32, {3});
      launch(stream(), ready(CrossEntropy{.logits = logits, .labels = labels, .loss = loss, .vocab_size = 1100}));
      EXPECT_FALSE(std::isfinite(values(loss)[0])) << bad << " at " << at;
    }
  }
}

TEST_P(CrossEntropyTest, MinusInfinityHasNoProbability) {
  const double inf = std::numeric_limits<double>::infinity();
  Values given(1030, -inf);
  given[1028] = 2, given[1029] = 2;
  const Tensor logits = inout({1, 1030}, dtype(), given), loss = output({1}, DType::kFp32);
  run(CrossEntropy{.logits = logits,
                   .labels = input({1}, DType::kInt32, {1029}),
                   .loss = loss,
                   .vocab_size = 1030,
                   .write_gradient = true,
                   .parameters = scale_by(1)});
  expect_close(loss, {std::log(2.0)});
  Values want(1030, 0.0);
  want[1028] = 0.5, want[1029] = -0.5;
  expect_close(logits, want);
}

TEST_P(CrossEntropyTest, Refusals) {
  const Tensor logits = output({2, 9}), loss = output({2}, DType::kFp32);
  const Tensor labels = input({2}, DType::kInt32, {0, 8});
  CrossEntropy op{.logits = logits, .labels = labels, .loss = loss, .vocab_size = 8};
  expect_kernel_error(op, ExitCode::kFormat, "label of row 1: expected at most 7, got 8");
  expect_untouched(logits);
  op.vocab_size = 10;
  expect_refused(op, "op.vocab_size: expected 1 to 9, got 10");
}

}  // namespace
}  // namespace megalith::test

// The three ops of a cross-entropy over split columns, against the unsplit op's reference.
#include "core/ops/loss/vocab_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference/cross_entropy.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class VocabCrossEntropyTest : public OpTest {
 protected:
  struct Split {
    Values loss;
    std::vector<Values> gradients;  // [T, V] of each part
  };
  // Its parts of `width` columns each.
  std::vector<Tensor> parts_of(const Values& x, std::int64_t rows, std::int64_t columns, std::int64_t width) {
    std::vector<Tensor> parts;
    for (std::int64_t first = 0; first < columns; first += width) {
      Values part;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < width; ++c) part.push_back(x[static_cast<std::size_t>(r * columns + first + c)]);
      }
      parts.push_back(inout({rows, width}, dtype(), part));
    }
    return parts;
  }
  // `x` is [T, parts * width]; results that ranks would exchange are combined here.
  Split run_split(const Values& x, const Values& label_values, std::int64_t width, std::int64_t vocab, float scale) {
    const auto rows = static_cast<std::int64_t>(label_values.size());
    const std::int64_t columns = rows == 0 ? width : static_cast<std::int64_t>(x.size()) / rows;
    const Tensor labels = input({rows}, DType::kInt32, label_values);
    const std::vector<Tensor> parts = parts_of(x, rows, columns, width);
    Values max(label_values.size(), -std::numeric_limits<double>::infinity()), sums(2 * label_values.size(), 0.0);
    const auto columns_of = [&](std::size_t p) {
      return VocabColumns{.first_column = static_cast<std::int64_t>(p) * width, .vocab_size = vocab};
    };
    const auto without = [&](std::size_t p, const Idles& idle) {
      return columns_of(p).first_column < vocab ? Idles{} : idle;
    };
    constexpr std::string_view kPadding = "the part is padding";
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Tensor mine = output({rows}, DType::kFp32);
      run(VocabMax{.logits = parts[p], .labels = labels, .max = mine, .columns = columns_of(p)},
          without(p, {{parts[p], kPadding}}));
      const Values got = values(mine);
      for (std::size_t r = 0; r < max.size(); ++r) max[r] = std::max(max[r], got[r]);
    }
    const Tensor whole_max = input({rows}, DType::kFp32, max);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Tensor mine = output({2, rows}, DType::kFp32);
      run(VocabSums{.logits = parts[p], .labels = labels, .max = whole_max, .sums = mine, .columns = columns_of(p)},
          without(p, {{parts[p], kPadding}, {labels, kPadding}, {whole_max, kPadding}}));
      const Values got = values(mine);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += got[i];
    }
    const Tensor whole_sums = input({2, rows}, DType::kFp32, sums);
    const auto* parameters = device_struct(MicrobatchParameters{.loss_scale = scale});
    Split split;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const Tensor loss = output({rows}, DType::kFp32);
      VocabLoss op{.logits = parts[p],
                   .labels = labels,
                   .max = whole_max,
                   .sums = whole_sums,
                   .loss = loss,
                   .columns = columns_of(p),
                   .write_gradient = true,
                   .parameters = parameters};
      Idles idle = without(p, {{parts[p], kPadding}, {whole_max, kPadding}, {parameters, kPadding}});
      constexpr std::string_view kLabelAlone = "the gradient of the label's logit comes of the sums alone";
      const bool is_label = width == 1 && rows == 1 && label_values[0] == static_cast<double>(p);
      if (is_label) idle = {{parts[p], kLabelAlone}, {whole_max, kLabelAlone}};
      run(op, idle);
      split.gradients.push_back(values(parts[p]));
      if (p == 0) split.loss = values(loss);
      EXPECT_EQ(values(loss), split.loss);
      op.write_gradient = false, op.parameters = nullptr;
      run(op);
      EXPECT_EQ(values(loss), split.loss);
      expect_untouched(parts[p]);
    }
    return split;
  }
};
MEGALITH_OP_TESTS(VocabCrossEntropyTest);

TEST_P(VocabCrossEntropyTest, IsTheWholeRowsLossAndGradient) {
  constexpr float kScale = 0.125f;
  // The last part may be padding, partly or fully.
  for (const auto& [width, parts, vocab] :
       {std::array<std::int64_t, 3>{1, 2, 2}, {9, 4, 31}, {8, 3, 16}, {1030, 2, 1041}}) {
    for (const std::int64_t rows : {0, 1, 3}) {
      const std::int64_t columns = width * parts;
      Values x = values(input({rows, columns}, dtype(), 4.0));
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        if (i % columns >= vocab) x[static_cast<std::size_t>(i)] = 1e30;  // padding must not count
      }
      Values labels;
      for (std::int64_t r = 0; r < rows; ++r) labels.push_back(static_cast<double>(r == 1 ? vocab - 1 : r * 7 % vocab));
      const Split got = run_split(x, labels, width, vocab, kScale);
      for (std::size_t r = 0; r < labels.size(); ++r) {
        const std::span<const double> row(x.data() + static_cast<std::int64_t>(r) * columns,
                                          static_cast<std::size_t>(vocab));
        const auto label = static_cast<std::size_t>(labels[r]);
        const double max = *std::max_element(row.begin(), row.end()), lse = reference::log_sum_exp(row);
        const double size = std::abs(max) + std::abs(lse - max) + std::abs(row[label]) + 1;
        EXPECT_NEAR(got.loss[r], reference::cross_entropy(row, label), tolerance(DType::kFp32, vocab) * size);
        const Values gradient = reference::cross_entropy_gradient(row, label);
        for (std::int64_t c = 0; c < columns; ++c) {
          const auto at = static_cast<std::size_t>(c);
          const double mine = got.gradients[static_cast<std::size_t>(c / width)]
                                           [r * static_cast<std::size_t>(width) + static_cast<std::size_t>(c % width)];
          if (c >= vocab) {
            EXPECT_EQ(mine, 0);
            continue;
          }
          const double probability = std::exp(row[at] - lse);
          const double terms = probability * (1 + std::abs(row[at]) + std::abs(max)) + (at == label ? 1 : 0);
          EXPECT_NEAR(mine, kScale * gradient[at], kScale * terms * tolerance(dtype(), vocab)) << r << " " << c;
        }
      }
    }
  }
}

TEST_P(VocabCrossEntropyTest, IgnoredTokensAndMinusInfinity) {
  const double inf = std::numeric_limits<double>::infinity();
  const Split got = run_split({1, 2, 3, 4, -inf, -inf, 2, 2}, {-1, 3}, 2, 4, 1);
  EXPECT_EQ(got.loss[0], 0);
  EXPECT_NEAR(got.loss[1], std::log(2.0), 1e-6);
  EXPECT_EQ(got.gradients[0], (Values{0, 0, 0, 0}));
  EXPECT_EQ(got.gradients[1], (Values{0, 0, 0.5, -0.5}));
}

TEST_P(VocabCrossEntropyTest, NotANumberAnywhereIsANotANumberLoss) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {std::nan(""), inf}) {
    const Tensor logits = input({1, 4}, dtype(), {0, bad, 0, 0}), labels = input({1}, DType::kInt32, {5});
    const Tensor max = output({1}, DType::kFp32), sums = output({2, 1}, DType::kFp32);
    const VocabColumns columns{.first_column = 0, .vocab_size = 8};
    launch(stream(), ready(VocabMax{.logits = logits, .labels = labels, .max = max, .columns = columns}));
    // The maximum over ranks may drop a NaN.
    for (const Tensor& over_ranks : {max, input({1}, DType::kFp32, {0.5})}) {
      if (over_ranks.data != max.data && !std::isnan(bad)) continue;
      launch(stream(),
             VocabSums{.logits = logits, .labels = labels, .max = over_ranks, .sums = sums, .columns = columns});
      EXPECT_TRUE(std::isnan(values(sums)[0])) << bad;
    }
  }
}

TEST_P(VocabCrossEntropyTest, Refusals) {
  const Tensor logits = output({2, 4}), max = output({2}, DType::kFp32), sums = output({2, 2}, DType::kFp32);
  const Tensor labels = input({2}, DType::kInt32, {0, 8});
  const VocabColumns columns{.first_column = 4, .vocab_size = 8};
  expect_kernel_error(VocabMax{.logits = logits, .labels = labels, .max = max, .columns = columns}, ExitCode::kFormat,
                      "label of row 1: expected at most 7, got 8");
  expect_untouched(max);
  VocabLoss loss{.logits = logits, .labels = labels, .max = max, .sums = sums, .loss = max, .columns = columns};
  loss.columns.vocab_size = 0;
  expect_refused(loss, "op.columns.vocab_size");
}

}  // namespace
}  // namespace megalith::test

#include "core/ops/optim/adamw.h"

#include <cmath>

#include "core/tensor/bf16.h"
#include "tests/reference/adamw.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

constexpr DType kFp32 = DType::kFp32, kBf16 = DType::kBf16;

// Dtypes of gradient, first and second moment.
struct StateDTypes {
  DType grad = kFp32, first = kFp32, second = kFp32;
};
const std::vector<StateDTypes> kStateDTypes = {
    {}, {.grad = kBf16}, {.first = kBf16}, {.second = kBf16}, {.grad = kBf16, .first = kBf16, .second = kBf16}};

class AdamWTest : public OpTest {
 protected:
  // The fp32 model computes with its main parameters.
  AdamWRange range(std::int64_t n, const StateDTypes& types = {}, double weight_decay = 0) {
    Values squares = normal(n, 0.1);
    for (double& v : squares) v *= v;
    AdamWRange range{.param = {},
                     .main_param = inout({n}, kFp32, normal(n)),
                     .grad = input({n}, types.grad, normal(n)),
                     .exp_avg = inout({n}, types.first, normal(n, 0.1)),
                     .exp_avg_sq = inout({n}, types.second, squares),
                     .weight_decay = weight_decay};
    range.param = dtype() == kFp32 ? range.main_param : output({n});
    return range;
  }
  AdamW make(std::vector<AdamWRange> ranges, const StepParameters& step) {
    return {.ranges = std::move(ranges), .parameters = device_struct(step)};
  }

  void compare(const AdamW& op, const StepParameters& step);
};
MEGALITH_OP_TESTS(AdamWTest);

void AdamWTest::compare(const AdamW& op, const StepParameters& step) {
  std::vector<Values> weights, gradients, firsts, seconds;
  for (const AdamWRange& range : op.ranges) {
    weights.push_back(values(range.main_param));
    gradients.push_back(values(range.grad));
    firsts.push_back(values(range.exp_avg));
    seconds.push_back(values(range.exp_avg_sq));
  }
  run(op);
  const double rate = static_cast<double>(step.learning_rate), clip = static_cast<double>(step.clip_factor);
  for (std::size_t r = 0; r < op.ranges.size(); ++r) {
    const AdamWRange& range = op.ranges[r];
    const Values &weight = weights[r], &first = firsts[r], &second = seconds[r];
    Values want, size, want_first, size_first, want_second;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const double g = gradients[r][i] * clip;
      const reference::AdamState after = reference::adamw({weight[i], first[i], second[i]}, g, step.adam_count,
                                                          {rate, op.beta1, op.beta2, op.eps, range.weight_decay});
      want.push_back(after.weight);
      want_first.push_back(after.first);
      want_second.push_back(after.second);
      // m + (1 - beta1) (g - m), and the step that is proportional to it.
      size_first.push_back(std::abs(first[i]) + (1 - op.beta1) * (std::abs(g) + std::abs(first[i])));
      const double step_by = std::abs(after.weight - weight[i] * (1 - rate * range.weight_decay));
      const double growth = after.first == 0 ? 1 : size_first.back() / std::abs(after.first);
      size.push_back(std::abs(weight[i]) + step_by * growth);
    }
    expect_close(range.exp_avg, want_first, {.length = 2, .magnitude = size_first, .what = "exp_avg"});
    expect_close(range.exp_avg_sq, want_second, {.length = 2, .what = "exp_avg_sq"});
    expect_close(range.main_param, want, {.length = 3, .magnitude = size, .what = "main_param"});
    // The model's copy is the main parameter rounded once, to nearest even.
    const Values main = values(range.main_param), param = values(range.param);
    for (std::size_t i = 0; i < main.size(); ++i) {
      const auto wide = static_cast<float>(main[i]);
      ASSERT_EQ(param[i], static_cast<double>(dtype() == kFp32 ? wide : to_float(to_bf16(wide))));
    }
  }
}

TEST_P(AdamWTest, OneStep) {
  for (const StateDTypes& types : kStateDTypes) {
    for (const std::int64_t n : {0, 1, 7, 8, 9, 2049}) {
      for (const std::int64_t count : {1, 2, 1000, 100000}) {
        const StepParameters step{.learning_rate = 0.01f, .adam_count = count, .clip_factor = 0.75f};
        AdamW op = make({range(n, types)}, step);
        op.beta2 = 0.95;
        compare(op, step);
      }
    }
  }
}

// Also more ranges than one launch accepts on CUDA, with empty ones.
TEST_P(AdamWTest, ManyRangesEachWithItsDecay) {
  const StepParameters step{.learning_rate = 0.01f, .adam_count = 5, .clip_factor = 0.75f};
  std::vector<AdamWRange> ranges;
  for (std::int64_t i = 0; i < 600; ++i)
    ranges.push_back(range(i % 97 == 5 ? 5000 : i % 5, {.second = kBf16}, i % 2 == 0 ? 0.1 : 0));
  compare(make(ranges, step), step);
}

// Rounding to nearest even keeps a moment if a step moves it by less than half its last bit.
TEST_P(AdamWTest, ABf16SecondMomentShrinksOnlyWithAFastDecay) {
  for (const double beta2 : {0.95, 0.999}) {
    AdamWRange one = range(8, {.second = kBf16});
    one.grad = input({8}, kFp32, Values(8, 0.0));
    one.exp_avg_sq = inout({8}, kBf16, Values(8, 1.0));
    AdamW op = make({one}, {.learning_rate = 0.01f, .adam_count = 5});
    op.beta2 = beta2;
    run(op);
    EXPECT_EQ(values(one.exp_avg_sq)[0], beta2 < 0.996 ? 0.94921875 : 1.0);
  }
}

TEST_P(AdamWTest, SkipLeavesEveryByte) {
  for (const StateDTypes& types : kStateDTypes) {
    const AdamW op = make({range(100, types, 0.1)}, {.learning_rate = 0.01f, .skip = 1, .adam_count = 3});
    const AdamWRange& only = op.ranges[0];
    constexpr std::string_view kSkipped = "the step is skipped";
    run(op,
        {{only.grad, kSkipped}, {only.main_param, kSkipped}, {only.exp_avg, kSkipped}, {only.exp_avg_sq, kSkipped}});
    for (const Tensor& t : {only.param, only.main_param, only.exp_avg, only.exp_avg_sq}) expect_untouched(t);
  }
}

TEST_P(AdamWTest, AnyCutGivesTheSameBits) {
  for (const StateDTypes& types : kStateDTypes) {
    const AdamW whole = make({range(100, types, 0.1)}, {.learning_rate = 0.01f, .adam_count = 3});
    const AdamWRange& first = whole.ranges[0];
    const auto again = [&](const Tensor& t) { return inout({100}, t.dtype, values(t)); };
    AdamWRange copy = first;
    copy.main_param = again(first.main_param);
    copy.exp_avg = again(first.exp_avg);
    copy.exp_avg_sq = again(first.exp_avg_sq);
    copy.param = dtype() == kFp32 ? copy.main_param : output({100});
    AdamW parts = whole;
    parts.ranges.clear();
    for (std::int64_t begin : {0, 3, 50, 51}) {
      const std::int64_t end = begin == 0 ? 3 : begin == 3 ? 50 : begin == 50 ? 51 : 100;
      AdamWRange part = copy;
      for (Tensor* t : {&part.param, &part.main_param, &part.grad, &part.exp_avg, &part.exp_avg_sq}) {
        *t = t->slice(0, begin, end - begin);
      }
      parts.ranges.push_back(part);
    }
    launch(stream(), whole);
    launch(stream(), parts);
    EXPECT_EQ(values(copy.main_param), values(first.main_param));
    EXPECT_EQ(values(copy.param), values(first.param));
    EXPECT_EQ(values(copy.exp_avg), values(first.exp_avg));
    EXPECT_EQ(values(copy.exp_avg_sq), values(first.exp_avg_sq));
  }
}

// Minimizes (w - 3)^2 from 0: arrives, as Adam does at a step of lr.
TEST_P(AdamWTest, FindsAMinimum) {
  AdamWRange only = range(8);
  only.main_param = inout({8}, kFp32, Values(8, 0.0));
  only.param = dtype() == kFp32 ? only.main_param : output({8});
  only.exp_avg = inout({8}, kFp32, Values(8, 0.0));
  only.exp_avg_sq = inout({8}, kFp32, Values(8, 0.0));
  for (std::int64_t count = 1; count <= 400; ++count) {
    Values gradient = values(only.main_param);
    for (double& v : gradient) v = 2 * (v - 3);
    only.grad = input({8}, kFp32, gradient);
    launch(stream(), make({only}, {.learning_rate = 0.05f, .adam_count = count}));
  }
  for (const double w : values(only.param)) EXPECT_NEAR(w, 3, 0.05);
}

TEST_P(AdamWTest, Refusals) {
  const AdamW good = make({range(8), range(3)}, {});
  AdamW op = good;
  op.ranges[1].weight_decay = -1;
  expect_refused(op, "range.weight_decay");
  op = good, op.beta2 = 1;
  expect_refused(op, "op.beta2");
}

}  // namespace
}  // namespace megalith::test

#include "core/ops/adamw.h"

#include <cmath>

#include "core/tensor/bf16.h"
#include "tests/reference/adamw.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

struct Hyperparameters {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
};

class AdamWTest : public OpTest {
 protected:
  // The fp32 model computes with its main parameters.
  AdamW make(std::int64_t n, const Hyperparameters& with, const StepParameters& step) {
    Values squares = normal(n, 0.1);
    for (double& v : squares) v *= v;
    AdamW op{.main_param = inout({n}, DType::kFp32, normal(n)),
             .grad = input({n}, DType::kFp32, normal(n)),
             .exp_avg = inout({n}, DType::kFp32, normal(n, 0.1)),
             .exp_avg_sq = inout({n}, DType::kFp32, squares),
             .beta1 = with.beta1,
             .beta2 = with.beta2,
             .eps = with.eps,
             .weight_decay = with.weight_decay,
             .parameters = device_struct(step)};
    op.param = dtype() == DType::kFp32 ? op.main_param : output({n});
    return op;
  }
};
MEGALITH_OP_TESTS(AdamWTest);

TEST_P(AdamWTest, OneStep) {
  for (const std::int64_t n : {0, 1, 7, 8, 9, 1025}) {
    for (const std::int64_t count : {1, 2, 1000, 100000}) {
      for (const double decay : {0.0, 0.1}) {
        const StepParameters step{.learning_rate = 0.01f, .adam_count = count, .clip_factor = 0.75f};
        const AdamW op = make(n, {.beta2 = 0.95, .weight_decay = decay}, step);
        const Values weight = values(op.main_param), gradient = values(op.grad);
        const Values first = values(op.exp_avg), second = values(op.exp_avg_sq);
        Values want, size, want_first, size_first, want_second;
        for (std::size_t i = 0; i < weight.size(); ++i) {
          const double g = gradient[i] * 0.75;
          const reference::AdamState after =
              reference::adamw({weight[i], first[i], second[i]}, g, count,
                               {static_cast<double>(step.learning_rate), op.beta1, op.beta2, op.eps, decay});
          want.push_back(after.weight);
          want_first.push_back(after.first);
          want_second.push_back(after.second);
          // m + (1 - beta1) (g - m), and the step that is proportional to it.
          size_first.push_back(std::abs(first[i]) + (1 - op.beta1) * (std::abs(g) + std::abs(first[i])));
          const double step_by =
              std::abs(after.weight - weight[i] * (1 - static_cast<double>(step.learning_rate) * decay));
          const double growth = after.first == 0 ? 1 : size_first.back() / std::abs(after.first);
          size.push_back(std::abs(weight[i]) + step_by * growth);
        }
        run(op);
        expect_close(op.exp_avg, want_first, {.length = 2, .magnitude = size_first, .what = "exp_avg"});
        expect_close(op.exp_avg_sq, want_second, {.length = 2, .what = "exp_avg_sq"});
        expect_close(op.main_param, want, {.length = 3, .magnitude = size, .what = "main_param"});
        // The model's copy is the main parameter rounded once, to nearest even.
        const Values main = values(op.main_param), param = values(op.param);
        for (std::size_t i = 0; i < main.size(); ++i) {
          const auto wide = static_cast<float>(main[i]);
          ASSERT_EQ(param[i], static_cast<double>(dtype() == DType::kFp32 ? wide : to_float(to_bf16(wide))));
        }
      }
    }
  }
}

TEST_P(AdamWTest, SkipLeavesEveryByte) {
  StepParameters step{.learning_rate = 0.01f, .skip = 1, .adam_count = 3};
  const AdamW op = make(100, {.weight_decay = 0.1}, step);
  run(op);
  for (const Tensor& t : {op.param, op.main_param, op.exp_avg, op.exp_avg_sq}) expect_untouched(t);
}

TEST_P(AdamWTest, AnySliceGivesTheSameBits) {
  const AdamW whole = make(100, {.weight_decay = 0.1}, {.learning_rate = 0.01f, .adam_count = 3});
  AdamW copy = whole;
  const auto again = [&](const Tensor& t) { return inout({100}, DType::kFp32, values(t)); };
  copy.main_param = again(whole.main_param);
  copy.exp_avg = again(whole.exp_avg);
  copy.exp_avg_sq = again(whole.exp_avg_sq);
  copy.param = dtype() == DType::kFp32 ? copy.main_param : output({100});
  launch(stream(), whole);
  for (std::int64_t begin : {0, 3, 50, 51}) {
    const std::int64_t end = begin == 0 ? 3 : begin == 3 ? 50 : begin == 50 ? 51 : 100;
    AdamW part = copy;
    for (Tensor* t : {&part.param, &part.main_param, &part.grad, &part.exp_avg, &part.exp_avg_sq}) {
      *t = t->slice(0, begin, end - begin);
    }
    launch(stream(), part);
  }
  EXPECT_EQ(values(copy.main_param), values(whole.main_param));
  EXPECT_EQ(values(copy.param), values(whole.param));
  EXPECT_EQ(values(copy.exp_avg), values(whole.exp_avg));
  EXPECT_EQ(values(copy.exp_avg_sq), values(whole.exp_avg_sq));
}

// Minimises (w - 3)^2 from 0: arrives, as Adam does at a step of lr.
TEST_P(AdamWTest, FindsAMinimum) {
  AdamW op = make(8, {}, {.learning_rate = 0.05f});
  op.main_param = inout({8}, DType::kFp32, Values(8, 0.0));
  op.param = dtype() == DType::kFp32 ? op.main_param : output({8});
  op.exp_avg = inout({8}, DType::kFp32, Values(8, 0.0));
  op.exp_avg_sq = inout({8}, DType::kFp32, Values(8, 0.0));
  for (std::int64_t count = 1; count <= 400; ++count) {
    Values gradient = values(op.main_param);
    for (double& v : gradient) v = 2 * (v - 3);
    op.grad = input({8}, DType::kFp32, gradient);
    op.parameters = device_struct(StepParameters{.learning_rate = 0.05f, .adam_count = count});
    launch(stream(), op);
  }
  for (const double w : values(op.param)) EXPECT_NEAR(w, 3, 0.05);
}

TEST_P(AdamWTest, Refusals) {
  const AdamW good = make(8, {}, {});
  AdamW op = good;
  op.grad = op.grad.slice(0, 0, 7);
  expect_refused(op, "op.grad: expected shape [8], got [7]");
  op = good, op.exp_avg_sq = op.exp_avg;
  expect_refused(op, "overlap");
  op = good, op.beta2 = 1;
  expect_refused(op, "op.beta2");
  op = good, op.parameters = nullptr;
  expect_refused(op, "op.parameters");
  op = good, op.main_param = output({8}, DType::kBf16);
  expect_refused(op, "op.main_param: expected dtype fp32, got bf16");
}

}  // namespace
}  // namespace megalith::test

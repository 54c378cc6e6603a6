#include "core/ops/norm/norm.h"

#include <cmath>

#include "core/tensor/bf16.h"
#include "tests/reference/norm.h"
#include "tests/support/op_test.h"
#include "tests/unit/ops/magnitude.h"

namespace megalith::test {
namespace {

Values sum_of_partials(const Values& partials, std::size_t length) {
  Values sum(length);
  for (std::size_t i = 0; i < partials.size(); ++i) sum[i % length] += partials[i];
  return sum;
}

Values rounded(const Values& x, DType type) {
  Values result;
  for (double value : x) {
    const float nearest = static_cast<float>(value);
    result.push_back(type == DType::kBf16 ? to_float(to_bf16(nearest)) : nearest);
  }
  return result;
}

class NormTest : public OpTest {
 protected:
  void expect_sum(const Tensor& got, const Values& want, const Values& magnitude, std::string_view what) {
    const std::int64_t length = got.rank() > 1 ? got.size(-1) : 8;
    expect_close(got, want,
                 {.length = length, .magnitude = sum_magnitude(want, magnitude, got.dtype, length), .what = what});
  }
  void expect_rows(const Tensor& got, const Values& want, const Values& magnitude, std::int64_t length,
                   std::string_view what) {
    expect_close(got, want,
                 {.length = length, .magnitude = sum_magnitude(want, magnitude, got.dtype, length), .what = what});
  }
  // The eight partial rows add up to `want`, which sums `rows` terms.
  void expect_partials(const Tensor& partials, const Values& want, const Values& magnitude, std::int64_t rows,
                       std::string_view what) {
    const Values sum = sum_of_partials(values(partials), want.size());
    for (std::size_t j = 0; j < want.size(); ++j) {
      EXPECT_NEAR(sum[j], want[j], tolerance(DType::kFp32, rows) * magnitude[j]) << what << " " << j;
    }
  }

  void rms(const Tensor& x, const Tensor& y) {
    const std::int64_t length = x.size(-1), rows = x.numel() / length;
    const Tensor weight = input({length}), rstd = output({rows}, DType::kFp32);
    const RmsNormForward op{.x = x, .weight = weight, .y = y, .rstd = rstd, .eps = 1e-3f};
    run(op);
    const auto want = reference::norm(values(x), values(weight), {}, settings(length, op.eps, false));
    expect_sum(y, want.y, want.y_magnitude, "y");
    expect_rows(rstd, want.rstd, want.rstd_magnitude, length, "rstd");
  }
  void backward(const Shape& shape, bool centred, bool has_residual, std::int64_t partials) {
    const std::int64_t length = shape.back(), rows = shape[0];
    const Tensor x = input(shape), dy = input(shape), weight = input({length});
    const Tensor d_residual = has_residual ? input(shape) : Tensor{};
    auto forward = reference::norm(values(x), values(weight), {}, settings(length, 1e-2f, centred));
    const Tensor mean = input({rows}, DType::kFp32, forward.mean);
    const Tensor rstd = input({rows}, DType::kFp32, forward.rstd);
    const Tensor dx = output(shape), d_weight = output({partials, length}, DType::kFp32);
    const Tensor d_bias = output({partials, length}, DType::kFp32);
    const Idles idle = rows == 0 ? Idles{{weight, "no rows"}} : Idles{};
    if (centred) {
      run(LayerNormBackward{.dy = dy,
                            .x = x,
                            .weight = weight,
                            .mean = mean,
                            .rstd = rstd,
                            .d_residual = d_residual,
                            .dx = dx,
                            .d_weight_partial = d_weight,
                            .d_bias_partial = d_bias},
          idle);
    } else {
      run(RmsNormBackward{.dy = dy,
                          .x = x,
                          .weight = weight,
                          .rstd = rstd,
                          .d_residual = d_residual,
                          .dx = dx,
                          .d_weight_partial = d_weight},
          idle);
    }
    const Values saved_mean = centred ? values(mean) : Values{}, saved_rstd = values(rstd);
    const Values residual = has_residual ? values(d_residual) : Values{};
    const auto want = reference::norm_gradient(values(dy), values(x), values(weight),
                                               {.mean = saved_mean, .rstd = saved_rstd, .d_residual = residual});
    expect_sum(dx, want.dx, want.dx_magnitude, "dx");
    expect_partials(d_weight, want.d_weight, want.d_weight_magnitude, rows, "d_weight");
    if (centred) expect_partials(d_bias, want.d_bias, want.d_bias_magnitude, rows, "d_bias");
  }
  static reference::NormSettings settings(std::int64_t length, float eps, bool centred) {
    return {.length = static_cast<std::size_t>(length), .eps = static_cast<double>(eps), .centred = centred};
  }
};
MEGALITH_OP_TESTS(NormTest);

const Shape kShapes[] = {{0, 8}, {1, 1}, {3, 7}, {9, 32}, {17, 33}, {2, 263}, {30, 64}};

TEST_P(NormTest, RmsForward) {
  for (const Shape& shape : kShapes) rms(input(shape), output(shape));
}

// QK norm: each head of a slice of a fused projection.
TEST_P(NormTest, RmsOfStridedHeads) {
  const Tensor fused = input({2, 5, 9, 12}), out = output({2, 5, 9, 12});
  rms(fused.slice(2, 3, 4), out.slice(2, 2, 4));
  expect_untouched(out.slice(2, 0, 2));
  expect_untouched(out.slice(2, 6, 3));
}

TEST_P(NormTest, ResidualIsAddedAndStoredBeforeTheNorm) {
  for (const Shape& shape : kShapes) {
    const std::int64_t length = shape.back(), rows = shape[0];
    const Tensor x = input(shape), residual = input(shape), weight = input({length}), bias = input({length});
    const Tensor sum = output(shape), y = output(shape), y2 = output(shape), sum2 = output(shape);
    const Tensor rstd = output({rows}, DType::kFp32), mean = output({rows}, DType::kFp32);
    Values added = values(x);
    const Values other = values(residual);
    for (std::size_t i = 0; i < added.size(); ++i) added[i] += other[i];
    added = rounded(added, dtype());

    run(RmsNormForward{.x = x, .residual = residual, .sum = sum, .weight = weight, .y = y, .rstd = rstd});
    EXPECT_EQ(values(sum), added);
    auto want = reference::norm(added, values(weight), {}, settings(length, 1e-5f, false));
    expect_sum(y, want.y, want.y_magnitude, "rms y");

    run(LayerNormForward{.x = x,
                         .residual = residual,
                         .sum = sum2,
                         .weight = weight,
                         .bias = bias,
                         .y = y2,
                         .mean = mean,
                         .rstd = rstd});
    EXPECT_EQ(values(sum2), added);
    want = reference::norm(added, values(weight), values(bias), settings(length, 1e-5f, true));
    expect_sum(y2, want.y, want.y_magnitude, "layer y");
  }
}

TEST_P(NormTest, SumMayReplaceAnInput) {
  const Values given = normal(5 * 40);
  const Tensor weight = input({40}), residual = input({5, 40}), x = inout({5, 40}, dtype(), given);
  const Tensor separate = input({5, 40}, dtype(), given), sum = output({5, 40});
  const Tensor y = output({5, 40}), rstd = output({5}, DType::kFp32);
  run(RmsNormForward{.x = separate, .residual = residual, .sum = sum, .weight = weight, .y = y, .rstd = rstd});
  const Values want_sum = values(sum), want_y = values(y);
  run(RmsNormForward{.x = x, .residual = residual, .sum = x, .weight = weight, .y = y, .rstd = rstd});
  EXPECT_EQ(values(x), want_sum);
  EXPECT_EQ(values(y), want_y);
}

TEST_P(NormTest, LayerForward) {
  for (const Shape& shape : kShapes) {
    const std::int64_t length = shape.back(), rows = shape[0];
    Values given = normal(shape.numel());
    for (double& value : given) value += 3;  // a mean that matters
    const Tensor x = input(shape, dtype(), given), weight = input({length}), bias = input({length});
    const Tensor y = output(shape), mean = output({rows}, DType::kFp32), rstd = output({rows}, DType::kFp32);
    const LayerNormForward op{.x = x, .weight = weight, .bias = bias, .y = y, .mean = mean, .rstd = rstd, .eps = 1e-3f};
    run(op);
    const auto want = reference::norm(values(x), values(weight), values(bias), settings(length, op.eps, true));
    expect_sum(y, want.y, want.y_magnitude, "y");
    expect_rows(mean, want.mean, want.mean_magnitude, length, "mean");
    expect_rows(rstd, want.rstd, want.rstd_magnitude, length, "rstd");
  }
}

TEST_P(NormTest, Backward) {
  for (const Shape& shape : kShapes) {
    for (const bool centred : {false, true}) {
      for (const bool has_residual : {false, true}) backward(shape, centred, has_residual, norm_partials(device()));
    }
  }
}

// On CUDA another kernel than for few.
TEST_P(NormTest, BackwardOfManyRowsForEachPartialSum) {
  for (const Shape& shape : {Shape{17, 33}, {30, 64}, {19, 520}}) {
    backward(shape, true, true, 2);
    backward(shape, false, false, 2);
  }
}

TEST_P(NormTest, BackwardInPlace) {
  const Values given = normal(20 * 36);
  const Tensor x = input({20, 36}), weight = input({36}), rstd = input({20}, DType::kFp32);
  const Tensor dy = input({20, 36}, dtype(), given), together = inout({20, 36}, dtype(), given), dx = output({20, 36});
  for (const std::int64_t partials : {norm_partials(device()), std::int64_t{2}}) {
    const Tensor partial = output({partials, 36}, DType::kFp32);
    run(RmsNormBackward{.dy = dy, .x = x, .weight = weight, .rstd = rstd, .dx = dx, .d_weight_partial = partial});
    const Values want = values(dx), want_weight = values(partial);
    run(RmsNormBackward{
        .dy = together, .x = x, .weight = weight, .rstd = rstd, .dx = together, .d_weight_partial = partial});
    EXPECT_EQ(values(together), want);
    EXPECT_EQ(values(partial), want_weight);
  }
}

TEST_P(NormTest, RmsBackwardMakesTheForwardAgain) {
  for (const Shape& shape : kShapes) {
    const std::int64_t length = shape.back(), rows = shape[0];
    const Tensor x = input(shape), dy = input(shape), weight = input({length}), y = output(shape);
    const Tensor rstd = output({rows}, DType::kFp32), dx = output(shape), again = output(shape);
    const Tensor partial = output({norm_partials(device()), length}, DType::kFp32);
    run(RmsNormForward{.x = x, .weight = weight, .y = y, .rstd = rstd});
    const Values want = values(y);
    const Tensor kept = input({rows}, DType::kFp32, values(rstd));
    RmsNormBackward op{.dy = dy, .x = x, .weight = weight, .rstd = kept, .dx = dx, .d_weight_partial = partial};
    const Idles idle = rows == 0 ? Idles{{weight, "no rows"}} : Idles{};
    run(op, idle);
    const Values want_dx = values(dx), want_weight = values(partial);
    op.y = again;
    run(op, idle);
    EXPECT_EQ(values(again), want);
    EXPECT_EQ(values(dx), want_dx);
    EXPECT_EQ(values(partial), want_weight);
  }
}

// Weights around zero give the bits of the weights plus 1, here exact numbers. The last shape is for CUDA's kernels of
// long rows.
TEST_P(NormTest, ZeroCenteredWeightsAreFactorsMinusOne) {
  for (const Shape& shape : {Shape{3, 7}, {17, 33}, {30, 64}, {600, 264}, {3, 17000}}) {
    const std::int64_t length = shape.back(), rows = shape[0];
    Values centered, factors;
    for (std::int64_t i = 0; i < length; ++i) {
      centered.push_back(static_cast<double>(i * 7 % 63 - 31) / 64);
      factors.push_back(1 + centered.back());
    }
    const Tensor x = input(shape), dy = input(shape), bias = input({length}), rstd = output({rows}, DType::kFp32);
    const Tensor mean = output({rows}, DType::kFp32), y = output(shape), dx = output(shape), again = output(shape);
    const Tensor partial = output({norm_partials(device()), length}, DType::kFp32);
    const Tensor d_bias = output({norm_partials(device()), length}, DType::kFp32);
    std::vector<std::vector<Values>> results;
    for (const bool zero_centered : {false, true}) {
      const Tensor weight = input({length}, dtype(), zero_centered ? centered : factors);
      std::vector<Values>& of_one = results.emplace_back();
      const auto keep = [&](std::initializer_list<Tensor> tensors) {
        for (const Tensor& tensor : tensors) of_one.push_back(values(tensor));
      };
      launch(stream(), RmsNormForward{.x = x, .weight = weight, .y = y, .rstd = rstd, .zero_centered = zero_centered});
      keep({y, rstd});
      launch(stream(), RmsNormBackward{.dy = dy,
                                       .x = x,
                                       .weight = weight,
                                       .rstd = rstd,
                                       .dx = dx,
                                       .d_weight_partial = partial,
                                       .y = again,
                                       .zero_centered = zero_centered});
      keep({dx, partial, again});
      EXPECT_EQ(of_one[4], of_one[0]);
      launch(stream(), LayerNormForward{.x = x,
                                        .weight = weight,
                                        .bias = bias,
                                        .y = y,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .zero_centered = zero_centered});
      keep({y, mean, rstd});
      launch(stream(), LayerNormBackward{.dy = dy,
                                         .x = x,
                                         .weight = weight,
                                         .mean = mean,
                                         .rstd = rstd,
                                         .dx = dx,
                                         .d_weight_partial = partial,
                                         .d_bias_partial = d_bias,
                                         .zero_centered = zero_centered});
      keep({dx, partial, d_bias});
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

// Rows beyond the bound of dim 0 are neither read nor written.
TEST_P(NormTest, BoundedRows) {
  const std::int32_t* bound = device_struct(std::int32_t{3});
  const Tensor x = input({5, 10}), weight = input({10}), y = output({5, 10}), rstd = output({5}, DType::kFp32);
  Tensor bounded = x;
  bounded.bound = bound;
  run(RmsNormForward{.x = bounded, .weight = weight, .y = y, .rstd = rstd});
  expect_untouched(y.slice(0, 3, 2));
  expect_untouched(rstd.slice(0, 3, 2));
  const auto want = reference::norm(values(x.slice(0, 0, 3)), values(weight), {}, settings(10, 1e-5f, false));
  expect_sum(y.slice(0, 0, 3), want.y, want.y_magnitude, "y");
}

TEST_P(NormTest, TakesResidualAndSumTogether) {
  const Tensor x = input({4, 6}), weight = input({6}), y = output({4, 6}), rstd = output({4}, DType::kFp32);
  expect_refused(RmsNormForward{.x = x, .residual = input({4, 6}), .weight = weight, .y = y, .rstd = rstd},
                 "op.sum: expected present exactly with op.residual, got op.residual alone");
}

}  // namespace
}  // namespace megalith::test

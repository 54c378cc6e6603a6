#include "core/ops/elementwise/activation.h"

#include <cmath>
#include <limits>

#include "tests/reference/activation.h"
#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class ActivationTest : public OpTest {};
MEGALITH_OP_TESTS(ActivationTest);

// Spread over the tails as well.
constexpr double kDeviation = 3;

TEST_P(ActivationTest, GeluForward) {
  for (const bool exact : {false, true}) {
    for (const std::int64_t n : {0, 1, 7, 8, 9, 33, 4099}) {
      const Tensor x = input({n}, kDeviation);
      const Tensor y = output({n});
      run(GeluForward{.x = x, .y = y, .exact = exact});
      Values want, magnitude;
      for (const double v : values(x)) {
        want.push_back(reference::gelu(v, exact));
        magnitude.push_back(std::abs(v));  // 0.5 |x| (1 + |tanh| or |erf|), the two halves that cancel
      }
      expect_close(y, want, {.magnitude = magnitude});
    }
  }
}

TEST_P(ActivationTest, GeluBackward) {
  for (const bool exact : {false, true}) {
    for (const std::int64_t n : {0, 1, 7, 8, 9, 33, 4099}) {
      const Tensor x = input({n}, kDeviation);
      const Tensor dy = input({n});
      const Tensor dx = output({n});
      run(GeluBackward{.x = x, .dy = dy, .dx = dx, .exact = exact});
      const Values at = values(x), gradient = values(dy);
      Values want, magnitude;
      for (std::size_t i = 0; i < at.size(); ++i) {
        want.push_back(gradient[i] * reference::gelu_slope(at[i], exact));
        // The terms of the slope: 0.5, 0.5 t, 0.5 x u', 0.5 x t^2 u'.
        const double t = exact ? std::erf(at[i] / std::sqrt(2.0)) : std::tanh(reference::gelu_tanh_argument(at[i]));
        const double inner = exact ? std::exp(-at[i] * at[i] / 2) : 1 + t * t;
        const double slope = exact ? 1 : reference::gelu_tanh_argument_slope(at[i]);
        magnitude.push_back(std::abs(gradient[i]) * 0.5 * (1 + std::abs(t) + std::abs(at[i] * inner * slope)));
      }
      expect_close(dx, want, {.magnitude = magnitude});
    }
  }
}

TEST_P(ActivationTest, GeluWorksInPlace) {
  const Values given = normal(100);
  const Tensor separate_x = input({100}, dtype(), given), separate_y = output({100});
  const Tensor together = inout({100}, dtype(), given);
  run(GeluForward{.x = separate_x, .y = separate_y});
  run(GeluForward{.x = together, .y = together});
  run(GeluForward{.x = separate_x, .y = separate_y});
  const Values forward = values(separate_y);
  run(GeluForward{.x = together, .y = together});
  EXPECT_EQ(values(together), forward);

  const Tensor x = input({100});
  run(GeluBackward{.x = x, .dy = separate_x, .dx = separate_y});
  const Values backward = values(separate_y);
  run(GeluBackward{.x = x, .dy = together, .dx = together});
  EXPECT_EQ(values(together), backward);
}

TEST_P(ActivationTest, GeluAtTheEnds) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = input({7}, dtype(), {0, 50, -50, 1e30, -1e30, inf, std::nan("")});
  const Tensor dy = input({7}, dtype(), Values(7, 1.0));
  const Tensor y = output({7});
  for (const bool exact : {false, true}) {
    run(GeluForward{.x = x, .y = y, .exact = exact});
    const Values in = values(x), forward = values(y);
    EXPECT_EQ(forward[0], 0);
    EXPECT_EQ(forward[1], in[1]);
    EXPECT_EQ(forward[2], 0);
    EXPECT_EQ(forward[3], in[3]);
    EXPECT_EQ(forward[4], 0);
    EXPECT_EQ(forward[5], inf);
    EXPECT_TRUE(std::isnan(forward[6]));
    run(GeluBackward{.x = x, .dy = dy, .dx = y, .exact = exact});
    const Values slope = values(y);
    EXPECT_EQ(slope[0], 0.5);
    for (const std::size_t i : {1u, 3u}) EXPECT_EQ(slope[i], 1);
    for (const std::size_t i : {2u, 4u}) EXPECT_EQ(slope[i], 0);
    EXPECT_TRUE(std::isnan(slope[6]));
  }
}

TEST_P(ActivationTest, SquaredReluForwardAndBackward) {
  for (const std::int64_t n : {0, 1, 7, 8, 9, 33, 4099}) {
    Values given = normal(n, kDeviation);
    for (double& number : given) number = &number == given.data() ? 2 : number;  // not all below 0
    const Tensor x = input({n}, dtype(), given), dy = input({n}), y = output({n}), dx = output({n});
    const Values at = values(x), gradient = values(dy);
    Values forward, backward;
    for (std::size_t i = 0; i < at.size(); ++i) {
      forward.push_back(reference::squared_relu(at[i]));
      backward.push_back(gradient[i] * reference::squared_relu_slope(at[i]));
    }
    run(SquaredReluForward{.x = x, .y = y});
    expect_close(y, forward, {.what = "y"});
    run(SquaredReluBackward{.x = x, .dy = dy, .dx = dx});
    expect_close(dx, backward, {.what = "dx"});
  }
}

TEST_P(ActivationTest, SquaredReluInPlaceAndAtTheEnds) {
  const double inf = std::numeric_limits<double>::infinity();
  const Values given{0, 3, -3, -inf, inf, std::nan("")};
  const Tensor x = input({6}, dtype(), given), together = inout({6}, dtype(), given), y = output({6});
  const auto expect_ends = [this](const Tensor& result, const Values& want) {
    const Values got = values(result);
    EXPECT_EQ(Values(got.begin(), got.end() - 1), want);
    EXPECT_TRUE(std::isnan(got[5]));
  };
  run(SquaredReluForward{.x = x, .y = y});
  expect_ends(y, {0, 9, 0, 0, inf});
  run(SquaredReluForward{.x = together, .y = together});
  expect_ends(together, {0, 9, 0, 0, inf});
  const Tensor dy = inout({6}, dtype(), Values(6, 0.5));
  run(SquaredReluBackward{.x = x, .dy = dy, .dx = y});
  expect_ends(y, {0, 3, 0, 0, inf});
  run(SquaredReluBackward{.x = x, .dy = dy, .dx = dy});
  expect_ends(dy, {0, 3, 0, 0, inf});
}

TEST_P(ActivationTest, SwigluForwardAndBackward) {
  for (const std::int64_t rows : {0, 1, 3}) {
    for (const std::int64_t columns : {1, 7, 8, 9, 129}) {
      const std::int64_t gap = 5;  // rows are slices of wider ones
      const Tensor x = input({rows, 2 * columns + gap}, kDeviation).slice(1, 2, 2 * columns);
      const Tensor dy = input({rows, columns + gap}).slice(1, 1, columns);
      const Tensor y_whole = output({rows, columns + gap}), dx_whole = output({rows, 2 * columns + gap});
      const Tensor y = y_whole.slice(1, 3, columns), dx = dx_whole.slice(1, 4, 2 * columns);
      const Values at = values(x), gradient = values(dy);
      Values forward, forward_size, backward, backward_size;
      for (std::int64_t t = 0; t < rows; ++t) {
        const auto* gate = at.data() + t * 2 * columns;
        const auto* up = gate + columns;
        const auto* d = gradient.data() + t * columns;
        for (std::int64_t c = 0; c < columns; ++c) forward.push_back(reference::silu(gate[c]) * up[c]);
        for (std::int64_t c = 0; c < columns; ++c) {
          backward.push_back(d[c] * up[c] * reference::silu_slope(gate[c]));
          // s + g s - g s^2
          const double s = 1 / (1 + std::exp(-gate[c]));
          backward_size.push_back(std::abs(d[c] * up[c]) * (s + std::abs(gate[c]) * s * (1 + s)));
        }
        for (std::int64_t c = 0; c < columns; ++c) {
          backward.push_back(d[c] * reference::silu(gate[c]));
          backward_size.push_back(0);
        }
      }
      run(SwigluForward{.x = x, .y = y});
      expect_close(y, forward, {.what = "y"});
      expect_untouched(y_whole.slice(1, 0, 3));
      expect_untouched(y_whole.slice(1, columns + 3, gap - 3));
      run(SwigluBackward{.x = x, .dy = dy, .dx = dx});
      expect_close(dx, backward, {.magnitude = backward_size, .what = "dx"});
      expect_untouched(dx_whole.slice(1, 0, 4));
      expect_untouched(dx_whole.slice(1, 2 * columns + 4, gap - 4));
    }
  }
}

TEST_P(ActivationTest, SwigluBackwardWorksInPlace) {
  const Values given = normal(2 * 26);
  const Tensor x = input({2, 26}, dtype(), given), dy = input({2, 13}), dx = output({2, 26});
  const Tensor together = inout({2, 26}, dtype(), given);
  run(SwigluBackward{.x = x, .dy = dy, .dx = dx});
  const Values separate = values(dx);
  run(SwigluBackward{.x = together, .dy = dy, .dx = together});
  EXPECT_EQ(values(together), separate);
}

TEST_P(ActivationTest, SwigluBackwardMakesTheForwardAgain) {
  for (const std::int64_t columns : {1, 8, 13, 300}) {
    const Values gradient = normal(static_cast<std::size_t>(5 * columns));
    const Tensor x = input({5, 2 * columns}), dy = input({5, columns}, dtype(), gradient), y = output({5, columns});
    const Tensor dx = output({5, 2 * columns}), again = output({5, columns});
    const Tensor together = inout({5, columns}, dtype(), gradient);
    run(SwigluForward{.x = x, .y = y});
    const Values want = values(y);
    run(SwigluBackward{.x = x, .dy = dy, .dx = dx});
    const Values want_dx = values(dx);
    run(SwigluBackward{.x = x, .dy = dy, .dx = dx, .y = again});
    EXPECT_EQ(values(again), want);
    EXPECT_EQ(values(dx), want_dx);
    run(SwigluBackward{.x = x, .dy = together, .dx = dx, .y = together});
    EXPECT_EQ(values(together), want);
    EXPECT_EQ(values(dx), want_dx);
  }
}

}  // namespace
}  // namespace megalith::test

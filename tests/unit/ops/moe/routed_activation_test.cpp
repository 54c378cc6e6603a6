#include "moe/ops/routed_activation.h"

#include <cmath>
#include <vector>

#include "tests/reference/activation.h"
#include "tests/unit/ops/moe/routed_rows.h"

namespace megalith::test {
namespace {

constexpr std::int64_t kActivationRoundings = 9;
constexpr std::int64_t kActivationColumns[] = {1, 7, 8, 64, 136, 300};
constexpr Pointwise kFunctions[] = {Pointwise::kGeluTanh, Pointwise::kGeluExact, Pointwise::kSquaredRelu};

std::int64_t partials_of(std::int64_t columns) { return (columns + 63) / 64; }

double value_of(Pointwise function, double x) {
  return function == Pointwise::kSquaredRelu ? reference::squared_relu(x)
                                             : reference::gelu(x, function == Pointwise::kGeluExact);
}
double slope_of(Pointwise function, double x) {
  return function == Pointwise::kSquaredRelu ? reference::squared_relu_slope(x)
                                             : reference::gelu_slope(x, function == Pointwise::kGeluExact);
}
// Bound of the terms that cancel in the function and in its slope.
double value_size(double x) { return std::abs(x) + x * x; }
double slope_size(double x) { return 1 + 2 * std::abs(x) + std::abs(x * x * x); }

class RoutedActivationTest : public RoutedTest {
 protected:
  struct Backward {
    Tensor dx, y, partial;
  };
  Backward outputs(const ExpertRanges& routing, std::int64_t columns) {
    return {output({routing.capacity, columns}), output({routing.capacity, columns}),
            output({routing.capacity, partials_of(columns)}, DType::kFp32)};
  }

  void compare_gradients(const RoutedActivationBackward& op, const ExpertRanges& routing) {
    const auto columns = static_cast<std::size_t>(op.dy.size(1)), parts = (columns + 63) / 64;
    const Values x = values(live(op.x, routing)), dy = values(live(op.dy, routing));
    const Values weight = values(live(op.row_weight, routing));
    Values dx, size, sums(weight.size() * parts), sum_size(weight.size() * parts);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t r = i / columns, part = r * parts + i % columns / 64;
      dx.push_back(weight[r] * dy[i] * slope_of(op.function, x[i]));
      size.push_back(std::abs(weight[r] * dy[i]) * slope_size(x[i]));
      sums[part] += dy[i] * value_of(op.function, x[i]);
      sum_size[part] += std::abs(dy[i]) * value_size(x[i]);
    }
    expect_close(live(op.dx, routing), dx, {.length = kActivationRoundings, .magnitude = size, .what = "dx"});
    // Each term is of a rounded s.
    const double tolerated = tolerance(DType::kFp32, 64 + kActivationRoundings);
    const double scale = (tolerated + (dtype() == DType::kBf16 ? unit_roundoff(dtype()) : 0)) / tolerated;
    for (double& one : sum_size) one *= scale;
    expect_close(live(op.d_row_weight_partial, routing), sums,
                 {.length = 64 + kActivationRoundings, .magnitude = sum_size, .what = "the weight's gradient"});
  }
};
MEGALITH_OP_TESTS(RoutedActivationTest);

TEST_P(RoutedActivationTest, ForwardAndBackward) {
  for (const Pointwise function : kFunctions) {
    for (const ExpertRanges& routing : kSmallRoutings) {
      for (const std::int64_t columns : kActivationColumns) {
        SCOPED_TRACE(name_of(routing) + ", columns " + std::to_string(columns));
        Values given = normal(routing.live() * columns, 2);
        for (double& number : given) number = &number == given.data() ? 2 : number;  // not all below 0
        const Tensor x = input({routing.capacity, columns}, dtype(), padded(given, routing, columns));
        const Tensor dy = routed_input(routing, columns);
        const Tensor weight = row_weights(routing), offsets = offsets_of(routing);
        const Tensor y = output({routing.capacity, columns});
        run_any_rows(
            RoutedActivationForward{.x = x, .row_weight = weight, .offsets = offsets, .y = y, .function = function},
            routing);
        const Values at = values(live(x, routing)), weights = values(live(weight, routing));
        Values want, size;
        for (std::size_t i = 0; i < at.size(); ++i) {
          const double w = weights[i / static_cast<std::size_t>(columns)];
          want.push_back(w * value_of(function, at[i]));
          size.push_back(std::abs(w) * value_size(at[i]));
        }
        expect_close(live(y, routing), want, {.length = kActivationRoundings, .magnitude = size, .what = "y"});
        expect_rest_untouched(y, routing);

        const Values forward = values(live(y, routing));
        const Backward out = outputs(routing, columns);
        const RoutedActivationBackward op{.x = x,
                                          .dy = dy,
                                          .row_weight = weight,
                                          .offsets = offsets,
                                          .dx = out.dx,
                                          .y = out.y,
                                          .d_row_weight_partial = out.partial,
                                          .function = function};
        run_any_rows(op, routing);
        EXPECT_EQ(values(live(out.y, routing)), forward);
        compare_gradients(op, routing);
        for (const Tensor& result : {out.dx, out.y, out.partial}) expect_rest_untouched(result, routing);
      }
    }
  }
}

TEST_P(RoutedActivationTest, BackwardWorksInPlace) {
  const ExpertRanges routing{{0, 3, 3, 8}, 11};
  for (const Pointwise function : kFunctions) {
    for (const std::int64_t columns : {7, 136}) {
      const Tensor x = inout({11, columns}, dtype(), padded(normal(8 * columns), routing, columns));
      const Tensor dy = inout({11, columns}, dtype(), padded(normal(8 * columns), routing, columns));
      const Tensor weight = row_weights(routing), offsets = offsets_of(routing);
      const Backward out = outputs(routing, columns);
      RoutedActivationBackward op{.x = x,
                                  .dy = dy,
                                  .row_weight = weight,
                                  .offsets = offsets,
                                  .dx = out.dx,
                                  .y = out.y,
                                  .d_row_weight_partial = out.partial,
                                  .function = function};
      run(op);
      const Values dx = values(live(out.dx, routing)), y = values(live(out.y, routing));
      const Values partial = values(live(out.partial, routing));
      op.dx = x;
      op.y = dy;
      run(op);
      EXPECT_EQ(values(live(x, routing)), dx);
      EXPECT_EQ(values(live(dy, routing)), y);
      EXPECT_EQ(values(live(out.partial, routing)), partial);
    }
  }
}

TEST_P(RoutedActivationTest, ReplaysWithAnotherRouting) {
  const ExpertRanges routing = all_rows();
  const Tensor x = routed_input(routing, 24), weight = row_weights(routing), y = output({kReplayCapacity, 24});
  expect_replay_follows_offsets(
      RoutedActivationForward{.x = x, .row_weight = weight, .y = y, .function = Pointwise::kSquaredRelu}, {y});
  const Backward out = outputs(routing, 24);
  expect_replay_follows_offsets(RoutedActivationBackward{.x = x,
                                                         .dy = routed_input(routing, 24),
                                                         .row_weight = weight,
                                                         .dx = out.dx,
                                                         .y = out.y,
                                                         .d_row_weight_partial = out.partial},
                                {out.dx, out.y, out.partial});
}

}  // namespace
}  // namespace megalith::test

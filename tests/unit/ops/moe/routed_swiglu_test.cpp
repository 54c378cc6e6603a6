#include <limits>
#include <vector>

#include "moe/ops/grouped_gemm/grouped_gemm.h"
#include "tests/reference/activation.h"
#include "tests/support/central_difference.h"
#include "tests/unit/ops/moe/routed_rows.h"

namespace megalith::test {
namespace {

constexpr std::int64_t kRoundings = 9;  // a logistic to 3 ulp, and three products
constexpr std::int64_t kColumns[] = {1, 7, 8, 64, 136, 300};

std::int64_t parts_of(std::int64_t columns) { return (columns + 63) / 64; }

class RoutedSwigluTest : public RoutedTest {
 protected:
  struct Backward {
    Tensor dx, y, partial;
  };
  Backward outputs(const ExpertRanges& routing, std::int64_t columns) {
    return {output({routing.capacity, 2 * columns}), output({routing.capacity, columns}),
            output({routing.capacity, parts_of(columns)}, DType::kFp32)};
  }
  static std::vector<Tensor> results(const Backward& of) { return {of.dx, of.y, of.partial}; }

  void compare_gradients(const RoutedSwigluBackward& op, const ExpertRanges& routing) {
    const auto columns = static_cast<std::size_t>(op.dy.size(1));
    const Values x = values(live(op.x, routing)), dy = values(live(op.dy, routing));
    const Values weight = values(live(op.row_weight, routing));
    const auto want = reference::routed_swiglu_gradient(x, dy, weight, columns);
    Values size;
    for (std::size_t i = 0; i < want.dx.size(); ++i) {
      const std::size_t r = i / (2 * columns), c = i % (2 * columns);
      if (c >= columns) {
        size.push_back(0);
        continue;
      }
      // The terms of the slope: s + g s - g s^2.
      const double g = x[i], s = 1 / (1 + std::exp(-g));
      size.push_back(std::abs(weight[r] * dy[r * columns + c] * x[i + columns]) * (s + std::abs(g) * s * (1 + s)));
    }
    expect_close(live(op.dx, routing), want.dx, {.length = kRoundings, .magnitude = size, .what = "dx"});
    // Each term is of a rounded s.
    const double sums = tolerance(DType::kFp32, 64 + kRoundings);
    const double scale = (sums + (dtype() == DType::kBf16 ? unit_roundoff(dtype()) : 0)) / sums;
    Values magnitude = want.d_row_weight_magnitude;
    for (double& value : magnitude) value *= scale;
    expect_close(live(op.d_row_weight_partial, routing), want.d_row_weight,
                 {.length = 64 + kRoundings, .magnitude = magnitude, .what = "the weight's gradient"});
  }
};
MEGALITH_OP_TESTS(RoutedSwigluTest);

TEST_P(RoutedSwigluTest, ForwardAndBackward) {
  for (const ExpertRanges& routing : kSmallRoutings) {
    for (const std::int64_t columns : kColumns) {
      SCOPED_TRACE(name_of(routing) + ", columns " + std::to_string(columns));
      const Tensor x = routed_input(routing, 2 * columns, 2), dy = routed_input(routing, columns);
      const Tensor weight = row_weights(routing), offsets = offsets_of(routing);
      const Tensor y = output({routing.capacity, columns});
      run_any_rows(RoutedSwigluForward{.x = x, .row_weight = weight, .offsets = offsets, .y = y}, routing);
      const Values forward = values(live(y, routing));
      expect_close(live(y, routing),
                   reference::routed_swiglu(values(live(x, routing)), values(live(weight, routing)),
                                            static_cast<std::size_t>(columns)),
                   {.length = kRoundings, .what = "y"});
      expect_rest_untouched(y, routing);

      const Backward out = outputs(routing, columns);
      const RoutedSwigluBackward op{.x = x,
                                    .dy = dy,
                                    .row_weight = weight,
                                    .offsets = offsets,
                                    .dx = out.dx,
                                    .y = out.y,
                                    .d_row_weight_partial = out.partial};
      run_any_rows(op, routing);
      EXPECT_EQ(values(live(out.y, routing)), forward);
      compare_gradients(op, routing);
      for (const Tensor& result : results(out)) expect_rest_untouched(result, routing);
    }
  }
}

TEST_P(RoutedSwigluTest, BackwardWorksInPlace) {
  const ExpertRanges routing{{0, 3, 3, 8}, 11};
  for (const std::int64_t columns : {7, 136}) {
    const Values at = padded(normal(8 * 2 * columns), routing, 2 * columns);
    const Values gradient = padded(normal(8 * columns), routing, columns);
    const Tensor x = inout({11, 2 * columns}, dtype(), at), dy = inout({11, columns}, dtype(), gradient);
    const Tensor weight = row_weights(routing), offsets = offsets_of(routing);
    const Backward out = outputs(routing, columns);
    RoutedSwigluBackward op{.x = x,
                            .dy = dy,
                            .row_weight = weight,
                            .offsets = offsets,
                            .dx = out.dx,
                            .y = out.y,
                            .d_row_weight_partial = out.partial};
    run(op);
    std::vector<Values> separate;
    for (const Tensor& result : results(out)) separate.push_back(values(live(result, routing)));
    op.dx = x;
    op.y = dy;
    run(op);
    EXPECT_EQ(values(live(x, routing)), separate[0]);
    EXPECT_EQ(values(live(dy, routing)), separate[1]);
    EXPECT_EQ(values(live(out.partial, routing)), separate[2]);
  }
}

// The order of sums that fused kernels share: packs of 8 columns, and those by pairs.
TEST_P(RoutedSwigluTest, WeightGradientsAreSummedInTheStatedOrder) {
  const ExpertRanges routing{{0, 6}, 8};
  const std::int64_t columns = 200;
  const Tensor x = routed_input(routing, 2 * columns, 2), dy = routed_input(routing, columns, 100);
  const Tensor ones = input({8}, DType::kFp32, Values(8, 1.0)), offsets = offsets_of(routing);
  const Backward out = outputs(routing, columns);
  run(RoutedSwigluBackward{.x = x,
                           .dy = dy,
                           .row_weight = ones,
                           .offsets = offsets,
                           .dx = out.dx,
                           .y = out.y,
                           .d_row_weight_partial = out.partial});
  const Values rounded = values(out.y), gradient = values(dy);  // with a weight of 1, y is s
  Values want;
  for (std::size_t r = 0; r < 6; ++r) {
    for (std::size_t first = 0; first < 200; first += 64) {
      volatile float p[8] = {};  // so that nothing is fused
      for (std::size_t c = first; c < std::min<std::size_t>(first + 64, 200); ++c) {
        volatile float term = static_cast<float>(gradient[r * 200 + c]) * static_cast<float>(rounded[r * 200 + c]);
        p[(c - first) / 8] = p[(c - first) / 8] + term;
      }
      const float low = (p[0] + p[1]) + (p[2] + p[3]), high = (p[4] + p[5]) + (p[6] + p[7]);
      want.push_back(low + high);
    }
  }
  EXPECT_EQ(values(live(out.partial, routing)), want);
}

class GroupedGemmSwigluTest : public RoutedSwigluTest {
 protected:
  static Idles idle_without_columns(const Operand& a, std::int64_t k) {
    return k == 0 && a.index ? Idles{{a.index, "rows of no elements"}} : Idles{};
  }
};
MEGALITH_OP_TESTS(GroupedGemmSwigluTest);

// Small and odd ones; full packs; several tiles in each dim; depths that CUDA's fast form supports.
struct Problem {
  ExpertRanges routing;
  std::int64_t k, columns;
};
const Problem kProblems[] = {{{{0, 0}, 0}, 7, 9},
                             {{{0, 0, 0, 0}, 5}, 8, 16},
                             {{{0, 1}, 1}, 1, 1},
                             {{{0, 3, 3, 8}, 11}, 7, 9},
                             {{{0, 3, 3, 8}, 11}, 24, 40},
                             {{{0, 2, 3}, 4}, 0, 8},
                             {{{0, 0, 150, 150}, 160}, 40, 136},
                             {{{0, 7, 7, 40, 41, 106, 235, 300, 301}, 305}, 72, 264},
                             {{{0, 3, 3, 8}, 11}, 64, 8},
                             {{{0, 7, 7, 40, 41, 106, 235, 300, 301}, 305}, 128, 264},
                             {many_experts(), 64, 8}};

TEST_P(GroupedGemmSwigluTest, HasTheBitsOfItsParts) {
  for (const auto& [routing, k, columns] : kProblems) {
    for (const bool gathered : {false, true}) {
      SCOPED_TRACE(name_of(routing) + ", k " + std::to_string(k) + ", columns " + std::to_string(columns));
      const Operand a = operand(routing, k, gathered);
      const Tensor gate = input({routing.experts() * columns, k}), up = input({routing.experts() * columns, k});
      const Tensor weight = row_weights(routing), offsets = offsets_of(routing);
      const Tensor h = output({routing.capacity, 2 * columns}), y = output({routing.capacity, columns});
      launch(stream(), ready(GroupedGemm{.a = a.x, .index = a.index, .offsets = offsets, .b = gate, .b2 = up, .c = h}));
      launch(stream(), RoutedSwigluForward{.x = h, .row_weight = weight, .offsets = offsets, .y = y});
      const Values want_h = values(live(h, routing)), want_y = values(live(y, routing));
      const GroupedGemmSwiglu op{
          .a = a.x, .index = a.index, .offsets = offsets, .gate = gate, .up = up, .row_weight = weight, .h = h, .y = y};
      run_any_rows(op, routing, idle_without_columns(a, k));
      EXPECT_EQ(values(live(h, routing)), want_h);
      EXPECT_EQ(values(live(y, routing)), want_y);
      expect_rest_untouched(h, routing);
      expect_rest_untouched(y, routing);
    }
  }
}

TEST_P(GroupedGemmSwigluTest, BackwardHasTheBitsOfItsParts) {
  for (const auto& [routing, k, columns] : kProblems) {
    for (const bool gathered : {false, true}) {
      SCOPED_TRACE(name_of(routing) + ", k " + std::to_string(k) + ", columns " + std::to_string(columns));
      const Operand dy = operand(routing, k, gathered);
      const Values at = padded(normal(routing.live() * 2 * columns), routing, 2 * columns);
      const Tensor h = inout({routing.capacity, 2 * columns}, dtype(), at), b = input({routing.experts() * k, columns});
      const Tensor weight = row_weights(routing), offsets = offsets_of(routing);
      const Tensor product = output({routing.capacity, columns});
      const Backward out = outputs(routing, columns);
      const GroupedGemm dgrad{
          .a = dy.x, .index = dy.index, .offsets = offsets, .b = b, .c = product, .transpose_b = false};
      launch(stream(), ready(dgrad));
      launch(stream(), RoutedSwigluBackward{.x = h,
                                            .dy = product,
                                            .row_weight = weight,
                                            .offsets = offsets,
                                            .dx = out.dx,
                                            .y = out.y,
                                            .d_row_weight_partial = out.partial});
      std::vector<Values> want;
      for (const Tensor& result : results(out)) want.push_back(values(live(result, routing)));
      GroupedGemmSwigluBackward op{.dy = dy.x,
                                   .index = dy.index,
                                   .offsets = offsets,
                                   .b = b,
                                   .h = h,
                                   .row_weight = weight,
                                   .dh = out.dx,
                                   .y = out.y,
                                   .d_row_weight_partial = out.partial};
      for (const bool in_place : {false, true}) {
        if (in_place) op.dh = h;
        run_any_rows(op, routing, idle_without_columns(dy, k));
        EXPECT_EQ(values(live(op.dh, routing)), want[0]);
        EXPECT_EQ(values(live(out.y, routing)), want[1]);
        EXPECT_EQ(values(live(out.partial, routing)), want[2]);
        for (const Tensor& result : {op.dh, out.y, out.partial}) expect_rest_untouched(result, routing);
      }
    }
  }
}

// Columns past the end add nothing to a part, even if dy times their placeholder is NaN.
TEST_P(GroupedGemmSwigluTest, AnInfiniteGradientLeavesNoNaN) {
  const ExpertRanges routing{{0, 2}, 2};
  const std::int64_t k = 64, columns = 72;
  const double inf = std::numeric_limits<double>::infinity();
  Values gradient(2 * k, 1.0);
  gradient[3] = inf;
  const Backward out = outputs(routing, columns);
  launch(stream(), ready(GroupedGemmSwigluBackward{.dy = input({2, k}, dtype(), gradient),
                                                   .offsets = offsets_of(routing),
                                                   .b = input({k, columns}, dtype(), Values(k * columns, 1.0)),
                                                   .h = input({2, 2 * columns}, dtype(), Values(2 * 2 * columns, 1.0)),
                                                   .row_weight = input({2}, DType::kFp32, Values(2, 1.0)),
                                                   .dh = out.dx,
                                                   .y = out.y,
                                                   .d_row_weight_partial = out.partial}));
  const Values partial = values(out.partial);
  EXPECT_EQ(Values(partial.begin(), partial.begin() + 2), Values(2, inf));
  EXPECT_TRUE(std::isfinite(partial[2]) && std::isfinite(partial[3]));
}

TEST_P(GroupedGemmSwigluTest, ReplaysWithAnotherRouting) {
  const std::int64_t k = 64, columns = 40;
  const Operand rows = operand(all_rows(), k, true);
  const Tensor gate = input({3 * columns, k}), up = input({3 * columns, k}), down = input({3 * k, columns});
  const Tensor weight = row_weights(all_rows()), x = routed_input(all_rows(), 2 * columns);
  const Tensor h = output({kReplayCapacity, 2 * columns}), y = output({kReplayCapacity, columns});
  expect_replay_follows_offsets(
      GroupedGemmSwiglu{.a = rows.x, .index = rows.index, .gate = gate, .up = up, .row_weight = weight, .h = h, .y = y},
      {h, y});
  const Backward out = outputs(all_rows(), columns);
  expect_replay_follows_offsets(GroupedGemmSwigluBackward{.dy = rows.x,
                                                          .index = rows.index,
                                                          .b = down,
                                                          .h = x,
                                                          .row_weight = weight,
                                                          .dh = out.dx,
                                                          .y = out.y,
                                                          .d_row_weight_partial = out.partial},
                                results(out));
}

// The reference itself.
TEST(RoutedSwigluReference, GradientsAreThoseOfCentralDifferences) {
  const std::size_t columns = 130;
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  const auto draw = [&](std::size_t count) {
    Values result(count);
    for (double& value : result) value = normal(random);
    return result;
  };
  const Values x = draw(2 * 2 * columns), dy = draw(2 * columns), weight = draw(2);
  const auto loss = [&](const Values& at, const Values& weights) {
    const Values y = reference::routed_swiglu(at, weights, columns);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
    return sum;
  };
  const auto gradient = reference::routed_swiglu_gradient(x, dy, weight, columns);
  expect_gradient([&](const Values& at) { return loss(at, weight); }, x, gradient.dx);
  const Values& parts = gradient.d_row_weight;
  expect_gradient([&](const Values& weights) { return loss(x, weights); }, weight,
                  {parts[0] + parts[1] + parts[2], parts[3] + parts[4] + parts[5]});
}

}  // namespace
}  // namespace megalith::test

#include "moe/ops/grouped_bias.h"

#include <cmath>
#include <vector>

#include "tests/unit/ops/moe/routed_rows.h"

namespace megalith::test {
namespace {

constexpr std::int64_t kBiasColumns[] = {1, 7, 8, 64, 300};

class GroupedBiasTest : public RoutedTest {
 protected:
  // The expert of each live row.
  static std::vector<std::size_t> owners(const ExpertRanges& routing) {
    std::vector<std::size_t> experts;
    for (std::size_t e = 0; e + 1 < routing.offsets.size(); ++e)
      for (int r = routing.offsets[e]; r < routing.offsets[e + 1]; ++r) experts.push_back(e);
    return experts;
  }
  Tensor bias_of(const ExpertRanges& routing, std::int64_t columns) { return input({routing.experts() * columns}); }
};
MEGALITH_OP_TESTS(GroupedBiasTest);

TEST_P(GroupedBiasTest, AddTheRowOfTheirExpert) {
  for (const ExpertRanges& routing : kSmallRoutings) {
    for (const std::int64_t columns : kBiasColumns) {
      for (const bool weighted : {false, true}) {
        SCOPED_TRACE(name_of(routing) + ", columns " + std::to_string(columns));
        const Values given = padded(normal(routing.live() * columns), routing, columns);
        const Tensor x = inout({routing.capacity, columns}, dtype(), given), bias = bias_of(routing, columns);
        const Tensor weight = weighted ? row_weights(routing) : Tensor{};
        const Values at = values(live(x, routing)), biases = values(bias);
        const Values weights = weighted ? values(live(weight, routing)) : Values();
        run_any_rows(GroupedBias{.x = x, .bias = bias, .row_weight = weight, .offsets = offsets_of(routing)}, routing);
        const std::vector<std::size_t> owner = owners(routing);
        Values want, size;
        for (std::size_t i = 0; i < at.size(); ++i) {
          const auto n = static_cast<std::size_t>(columns);
          const double term = (weighted ? weights[i / n] : 1) * biases[owner[i / n] * n + i % n];
          want.push_back(at[i] + term);
          size.push_back(std::abs(at[i]) + std::abs(term));
        }
        expect_close(live(x, routing), want, {.length = 2, .magnitude = size});
      }
    }
  }
}

TEST_P(GroupedBiasTest, AddToColumnsOfWiderRows) {
  const ExpertRanges routing{{0, 3, 3, 8}, 11};
  const Tensor whole = inout({11, 48}, dtype(), padded(normal(8 * 48), routing, 48)), x = whole.slice(1, 24, 24);
  const Values at = values(live(whole, routing));
  const Tensor bias = bias_of(routing, 24);
  run(GroupedBias{.x = x, .bias = bias, .offsets = offsets_of(routing)});
  const Values now = values(live(whole, routing));
  int changed = 0;  // a bf16 sum may round to the same number
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (i % 48 < 24) {
      EXPECT_EQ(now[i], at[i]) << i;
    }
    changed += now[i] != at[i] ? 1 : 0;
  }
  EXPECT_GT(changed, 150);  // of 192
}

TEST_P(GroupedBiasTest, DotProductsGoToTheFirstPartialSum) {
  for (const ExpertRanges& routing : kSmallRoutings) {
    for (const std::int64_t columns : kBiasColumns) {
      for (const bool gathered : {false, true}) {
        SCOPED_TRACE(name_of(routing) + ", columns " + std::to_string(columns));
        const Operand dy = operand(routing, columns, gathered);
        const Tensor bias = bias_of(routing, columns);
        const Values given = padded(normal(routing.live() * 3), routing, 3);
        const Tensor partial = inout({routing.capacity, 3}, DType::kFp32, given);
        const Values before = values(live(partial, routing)), biases = values(bias), gradient = values(dy.x);
        run_any_rows(GroupedBiasDot{.dy = dy.x,
                                    .index = dy.index,
                                    .bias = bias,
                                    .offsets = offsets_of(routing),
                                    .d_row_weight_partial = partial},
                     routing);
        const Values index = gathered ? values(dy.index) : Values();
        const std::vector<std::size_t> owner = owners(routing);
        const auto n = static_cast<std::size_t>(columns);
        Values want = before, size(before.size());
        for (std::size_t i = 0; i < before.size(); ++i) size[i] = std::abs(before[i]);
        for (std::size_t r = 0; r < owner.size(); ++r) {
          const std::size_t row = gathered ? static_cast<std::size_t>(index[r]) : r;
          for (std::size_t c = 0; c < n; ++c) {
            const double term = gradient[row * n + c] * biases[owner[r] * n + c];
            want[r * 3] += term;
            size[r * 3] += std::abs(term);
          }
        }
        expect_close(live(partial, routing), want, {.length = columns + 1, .magnitude = size});
      }
    }
  }
}

TEST_P(GroupedBiasTest, GradientsAreSumsOfAnExpertsRows) {
  for (const ExpertRanges& routing : kSmallRoutings) {
    for (const std::int64_t columns : kBiasColumns) {
      for (const bool weighted : {false, true}) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(name_of(routing) + ", columns " + std::to_string(columns));
          const Operand dy = operand(routing, columns, weighted);  // weighted rows are gathered ones
          const Tensor weight = weighted ? row_weights(routing) : Tensor{};
          const Shape shape{routing.experts() * columns};
          const Tensor d_bias = accumulate ? inout(shape, DType::kFp32, normal(shape[0])) : output(shape, DType::kFp32);
          Values want = accumulate ? values(d_bias) : Values(static_cast<std::size_t>(shape[0]));
          Values size = magnitudes(want);
          const Values gradient = values(dy.x), weights = weighted ? values(live(weight, routing)) : Values();
          const Values index = weighted ? values(dy.index) : Values();
          const std::vector<std::size_t> owner = owners(routing);
          const auto n = static_cast<std::size_t>(columns);
          for (std::size_t i = 0; i < owner.size() * n; ++i) {
            const std::size_t r = i / n, row = weighted ? static_cast<std::size_t>(index[r]) : r;
            const double term = (weighted ? weights[r] : 1) * gradient[row * n + i % n];
            want[owner[r] * n + i % n] += term;
            size[owner[r] * n + i % n] += std::abs(term);
          }
          const GroupedBiasGradient op{.dy = dy.x,
                                       .index = dy.index,
                                       .row_weight = weight,
                                       .offsets = offsets_of(routing),
                                       .d_bias = d_bias,
                                       .accumulate = accumulate};
          if (routing.capacity > 0) {
            run_any_rows(op, routing);
          } else {
            launch(stream(), ready(op));
            stream().synchronize();
          }
          expect_close(d_bias, want, {.length = routing.live() + 2, .magnitude = size});
        }
      }
    }
  }
}

// An expert's sum has the bits that it has without the rows of other experts.
TEST_P(GroupedBiasTest, GradientsDependOnTheExpertsRows) {
  const ExpertRanges routing{{0, 20, 20, 53}, 60}, alone{{0, 0, 0, 33}, 33};
  const Tensor dy = routed_input(routing, 5, 100), weight = row_weights(routing), d_bias = output({15}, DType::kFp32);
  run(GroupedBiasGradient{
      .dy = dy, .row_weight = weight, .offsets = offsets_of(routing), .d_bias = d_bias, .accumulate = false});
  const Values whole = values(d_bias);
  const Tensor d_alone = output({15}, DType::kFp32);
  run(GroupedBiasGradient{.dy = dy.slice(0, 20, 33),
                          .row_weight = weight.slice(0, 20, 33),
                          .offsets = offsets_of(alone),
                          .d_bias = d_alone,
                          .accumulate = false});
  const Values part = values(d_alone);
  EXPECT_EQ(Values(whole.begin() + 10, whole.end()), Values(part.begin() + 10, part.end()));
}

TEST_P(GroupedBiasTest, ReplayWithAnotherRouting) {
  const ExpertRanges routing = all_rows();
  const Tensor dy = routed_input(routing, 24), weight = row_weights(routing), bias = bias_of(routing, 24);
  const Tensor x = output({kReplayCapacity, 24}), partial = output({kReplayCapacity, 2}, DType::kFp32);
  const Tensor d_bias = output({routing.experts() * 24}, DType::kFp32);
  expect_replay_follows_offsets(GroupedBias{.x = x, .bias = bias, .row_weight = weight}, {x});
  expect_replay_follows_offsets(GroupedBiasDot{.dy = dy, .bias = bias, .d_row_weight_partial = partial}, {partial});
  expect_replay_follows_offsets(
      GroupedBiasGradient{.dy = dy, .row_weight = weight, .d_bias = d_bias, .accumulate = false}, {d_bias});
}

}  // namespace
}  // namespace megalith::test

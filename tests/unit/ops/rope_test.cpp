#include "core/ops/rope.h"

#include "tests/reference/rope.h"
#include "tests/support/op_test.h"
#include "tests/unit/ops/magnitude.h"

namespace megalith::test {
namespace {

class RopeTest : public OpTest {
 protected:
  void compare(const Rope& op, std::int32_t start = 0) {
    const Values x = values(op.x);
    run(op);
    const auto size = [&op](int dim) { return static_cast<std::size_t>(op.x.size(dim)); };
    const auto want = reference::rope(x,
                                      {.samples = size(0),
                                       .tokens = size(1),
                                       .heads = size(2),
                                       .dim = size(3),
                                       .rotary_dim = static_cast<std::size_t>(op.rotary_dim),
                                       .theta = static_cast<double>(op.theta),
                                       .start = static_cast<std::size_t>(start)},
                                      op.backward);
    expect_close(op.y, want.y, {.length = 2, .magnitude = sum_magnitude(want.y, want.magnitude, op.y.dtype, 2)});
  }
};
MEGALITH_OP_TESTS(RopeTest);

TEST_P(RopeTest, ForwardAndBackward) {
  struct Case {
    Shape shape;
    std::int64_t rotary_dim;
  };
  for (const auto& [shape, rotary_dim] : {Case{{0, 3, 2, 4}, 4},
                                          {{1, 1, 1, 2}, 2},
                                          {{2, 5, 3, 8}, 8},
                                          {{1, 33, 2, 34}, 34},
                                          {{2, 17, 1, 20}, 6},
                                          {{1, 40, 2, 64}, 64}}) {
    for (const bool backward : {false, true}) {
      compare({.x = input(shape), .y = output(shape), .theta = 500.0f, .rotary_dim = rotary_dim, .backward = backward});
    }
  }
}

TEST_P(RopeTest, SlicesOfAFusedProjection) {
  const Tensor fused = input({2, 19, 6, 16}), out = output({2, 19, 6, 16});
  compare({.x = fused.slice(2, 0, 4), .y = out.slice(2, 1, 4), .rotary_dim = 8});
  expect_untouched(out.slice(2, 0, 1));
  expect_untouched(out.slice(2, 5, 1));
}

TEST_P(RopeTest, InPlaceGivesTheSameBits) {
  const Values given = normal(2 * 9 * 3 * 20);
  const Shape shape{2, 9, 3, 20};
  const Tensor x = input(shape, dtype(), given), y = output(shape), together = inout(shape, dtype(), given);
  run(Rope{.x = x, .y = y, .rotary_dim = 18});
  const Values want = values(y);
  run(Rope{.x = together, .y = together, .rotary_dim = 18});
  EXPECT_EQ(values(together), want);
}

// A position far out, where an angle in fp32 would be off by a tenth of a radian; and any cut gives the same bits.
TEST_P(RopeTest, LatePositions) {
  const std::int32_t first = 1'000'003;
  const Tensor x = input({1, 45, 2, 32}), whole = output(x.shape);
  compare({.x = x, .y = whole, .rotary_dim = 32, .start = device_struct(first)}, first);
  const Values want = values(whole);
  for (const std::int64_t cut : {1, 13, 14, 30}) {
    const Tensor part = output({1, 45 - cut, 2, 32});
    run(Rope{.x = x.slice(1, cut, 45 - cut),
             .y = part,
             .rotary_dim = 32,
             .start = device_struct(static_cast<std::int32_t>(first + cut))});
    EXPECT_EQ(values(part), Values(want.begin() + cut * 64, want.end()));
  }
}

TEST_P(RopeTest, RefusesWhatDoesNotFit) {
  const Tensor x = input({1, 2, 3, 8}), y = output({1, 2, 3, 8});
  expect_refused(Rope{.x = x, .y = y}, "op.rotary_dim: expected an even number of 2 to 8, got 0");
  expect_refused(Rope{.x = x, .y = y, .rotary_dim = 5}, "got 5");
  expect_refused(Rope{.x = x, .y = y, .rotary_dim = 10}, "got 10");
  expect_refused(Rope{.x = x, .y = y, .theta = 0, .rotary_dim = 8}, "op.theta: expected more than 0");
  expect_refused(Rope{.x = x, .y = output({1, 2, 3, 9}), .rotary_dim = 8}, "op.y: expected shape [1, 2, 3, 8]");
  const Tensor fused = input({1, 2, 4, 8});
  expect_refused(Rope{.x = fused.slice(2, 0, 3), .y = fused.slice(2, 1, 3), .rotary_dim = 8}, "op.y and op.x");
}

}  // namespace
}  // namespace megalith::test

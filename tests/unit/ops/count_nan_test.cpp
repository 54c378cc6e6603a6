#include "core/ops/optim/count_nan.h"

#include <cmath>
#include <limits>

#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class CountNanTest : public OpTest {};
MEGALITH_OP_TESTS(CountNanTest);

const double kNan = std::nan(""), kInfinity = std::numeric_limits<double>::infinity();

TEST_P(CountNanTest, AddsThoseThatAreNoNumbers) {
  const Tensor x = input({2, 4}, dtype(), {1, kNan, kInfinity, 0, -kNan, -kInfinity, kNan, -0.0});
  const Tensor count = inout({1}, DType::kInt64, {5});
  run(CountNan{.x = x, .count = count});
  EXPECT_EQ(values(count), Values{8});
}

// All code paths of a block, with and without addresses that allow packs.
TEST_P(CountNanTest, CountsAnyNumberOfElements) {
  for (const std::int64_t elements : {1, 7, 8, 2048, 30001}) {
    Values given = normal(elements + 1);
    for (std::size_t i = 0; i < given.size(); ++i) given[i] = i % 3 < 2 ? kNan : given[i];
    const Tensor whole = input({elements + 1}, dtype(), given);
    for (const std::int64_t begin : {0, 1}) {
      const Tensor count = inout({1}, DType::kInt64, {0});
      run(CountNan{.x = whole.slice(0, begin, elements), .count = count});
      double want = 0;
      for (std::int64_t i = begin; i < begin + elements; ++i) want += i % 3 < 2 ? 1 : 0;
      EXPECT_EQ(values(count), Values{want}) << elements << " from " << begin;
    }
  }
}

TEST_P(CountNanTest, CountsNothingInNothing) {
  const Tensor count = inout({1}, DType::kInt64, {3});
  run(CountNan{.x = input({0, 4}), .count = count}, {{count, "nothing is added to it"}});
  EXPECT_EQ(values(count), Values{3});
}

TEST_P(CountNanTest, LeavesRowsAfterABoundAlone) {
  Tensor x = input({4, 2}, dtype(), {kNan, 1, 2, kNan, kNan, kNan, kNan, kNan});
  x.bound = device_struct(std::int32_t{2});
  const Tensor count = inout({1}, DType::kInt64, {0});
  run(CountNan{.x = x, .count = count});
  EXPECT_EQ(values(count), Values{2});
}

}  // namespace
}  // namespace megalith::test

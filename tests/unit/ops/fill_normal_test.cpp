#include "core/ops/elementwise/fill_normal.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class FillNormalTest : public OpTest {};
MEGALITH_OP_TESTS(FillNormalTest);

// The numbers themselves: tests/unit/base/rng_test.cpp.
TEST_P(FillNormalTest, GivesTheBitsOfTheHost) {
  const NormalNumbers whole{.seed = 7, .name_hash = hash_name("decoder.weight"), .mean = 0.5f, .std = 0.02f};
  for (const std::int64_t offset : {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{4},
                                    std::int64_t{1027}, (std::int64_t{1} << 34) - 2}) {
    for (const std::int64_t count : {0, 1, 2, 3, 5, 1023, 1024, 2500}) {
      NormalNumbers numbers = whole;
      numbers.offset = offset;
      std::vector<float> want(static_cast<std::size_t>(count));
      fill_normal(want, numbers);
      const Tensor x = output({1, count});
      run(FillNormal{.x = x, .numbers = numbers, .pitch = count});
      const Values got = values(x);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        const float rounded = dtype() == DType::kBf16 ? to_float(to_bf16(want[i])) : want[i];
        ASSERT_EQ(got[i], static_cast<double>(rounded)) << "number " << i << " of " << count << " from " << offset;
      }
    }
  }
}

TEST_P(FillNormalTest, UniformNumbersHaveTheirBoundAndMoments) {
  constexpr std::int64_t kCount = 200'000;
  const NormalNumbers numbers{.seed = 7, .name_hash = hash_name("w"), .std = 0.5f};
  const Tensor x = output({1, kCount});
  run(FillNormal{.x = x, .numbers = numbers, .uniform = true, .pitch = kCount});
  double sum = 0, squares = 0, largest = 0;
  for (const double value : values(x)) {
    sum += value;
    squares += value * value;
    largest = std::max(largest, std::abs(value));
  }
  EXPECT_NEAR(sum / kCount, 0, 0.005);
  EXPECT_NEAR(squares / kCount, 0.25, 0.002);
  EXPECT_NEAR(largest, 0.5 * std::sqrt(3.0), 0.005);
}

TEST_P(FillNormalTest, ColumnsOfAWiderParameterAreThoseOfTheWhole) {
  const NormalNumbers numbers{.seed = 3, .name_hash = hash_name("w"), .std = 2};
  constexpr std::int64_t kRows = 5, kColumns = 37;
  const Tensor whole = output({kRows, kColumns});
  run(FillNormal{.x = whole, .numbers = numbers, .pitch = kColumns});
  const Values all = values(whole);  // the next run makes all outputs NaN
  for (const auto& [begin, columns] : {std::pair{0, 37}, {0, 8}, {5, 1}, {6, 7}, {30, 7}}) {
    const Tensor part = output({kRows, columns});
    NormalNumbers its = numbers;
    its.offset = begin;
    run(FillNormal{.x = part, .numbers = its, .pitch = kColumns});
    Values want;
    for (std::int64_t row = 0; row < kRows; ++row) {
      want.insert(want.end(), all.begin() + row * kColumns + begin, all.begin() + row * kColumns + begin + columns);
    }
    EXPECT_EQ(values(part), want) << columns << " columns from " << begin;
  }
}

TEST_P(FillNormalTest, Refusals) {
  expect_refused(FillNormal{.x = output({4, 6}), .pitch = 5}, "op.pitch: expected at least 6");
}

}  // namespace
}  // namespace megalith::test

#include "moe/ops/expert_bias.h"

#include "tests/support/op_test.h"

namespace megalith::test {
namespace {

class ExpertBiasTest : public OpTest {};
MEGALITH_OP_TESTS(ExpertBiasTest);

TEST_P(ExpertBiasTest, CountsRows) {
  const Tensor offsets = input({6}, DType::kInt32, {0, 3, 3, 10, 11, 20});
  const Tensor counts = inout({5}, DType::kInt32, {1, 2, 3, 4, 5});
  run(CountExpertRows{.offsets = offsets, .counts = counts});
  EXPECT_EQ(values(counts), (Values{4, 2, 10, 5, 14}));
}

TEST_P(ExpertBiasTest, FollowsTheMeanOfTheLayer) {
  for (const std::int64_t experts : {3, 300}) {
    Values counts(static_cast<std::size_t>(2 * experts)), bias(counts.size(), 0.25), want;
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<double>(i % 3);
    for (std::size_t i = 0; i < counts.size(); ++i) want.push_back(0.25 + 0.125 * (1 - counts[i]));  // the mean is 1
    StepParameters* parameters = device_struct(StepParameters{});
    const Tensor updated = inout({2, experts}, DType::kFp32, bias);
    run(UpdateExpertBias{.counts = input({2, experts}, DType::kInt32, counts),
                         .bias = updated,
                         .rate = 0.125f,
                         .parameters = parameters});
    EXPECT_EQ(values(updated), want);
  }
}

// The mean is no integer, or the step is skipped.
TEST_P(ExpertBiasTest, TakesNoShareOfASkippedStep) {
  const Values counts{1, 1, 2, 7, 7, 7};
  for (const std::int32_t skip : {0, 1}) {
    StepParameters* parameters = device_struct(StepParameters{.skip = skip});
    const Tensor input_counts = input({2, 3}, DType::kInt32, counts);
    const Tensor bias = inout({2, 3}, DType::kFp32, {1, 1, 1, 1, 1, 1});
    const Idles idle = skip == 1 ? Idles{{input_counts, "the step is skipped"}, {bias, "likewise"}} : Idles{};
    run(UpdateExpertBias{.counts = input_counts, .bias = bias, .rate = 0.5f, .parameters = parameters}, idle);
    EXPECT_EQ(values(bias), skip == 1 ? Values(6, 1.0) : (Values{1.5, 1.5, 0.5, 1, 1, 1}));
  }
}

}  // namespace
}  // namespace megalith::test

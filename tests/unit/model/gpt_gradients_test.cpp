// The full model against the fp64 reference, from the same weights. The error of the loss and of every gradient is at
// most twice that of an independent reference at the model's dtype.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/model/family_cases.h"
#include "tests/unit/model/model_run.h"

namespace megalith {
namespace {

using reference::GptArithmetic;
using reference::GptResult;

constexpr int kSteps = 4;  // with different weights and tokens; errors are summed over them

class GptGradients : public test::FamilyTest {
 protected:
  void compare(std::int64_t loss_chunk_size, bool deterministic);
};
INSTANTIATE_TEST_SUITE_P(Families, GptGradients, testing::ValuesIn(test::family_cases()), test::name_of_family_case);

// Sums of squares over all steps.
struct Errors {
  double model = 0, reference = 0, size = 0;
};

template <class A, class B>
double squared_distance(const A& got, const B& want) {
  double sum = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    sum += difference * difference;
  }
  return sum;
}

template <class A>
double squared_size(const A& values) {
  return squared_distance(values, std::vector<double>(values.size(), 0.0));
}

// The sum over each microbatch's tokens, as a model reports it: one number of type Sum.
template <class Sum>
std::vector<double> by_microbatch(const std::vector<double>& losses, int microbatches) {
  std::vector<Sum> sums(static_cast<std::size_t>(microbatches));
  for (std::size_t t = 0; t < losses.size(); ++t) sums[t * sums.size() / losses.size()] += static_cast<Sum>(losses[t]);
  return {sums.begin(), sums.end()};
}

void GptGradients::compare(std::int64_t loss_chunk_size, bool deterministic) {
  std::map<std::string, Errors> errors;
  for (int step = 0; step < kSteps; ++step) {
    const test::ModelCase test{.config = config(),
                               .loss_chunk_size = loss_chunk_size,
                               .device = device(),
                               .deterministic = deterministic,
                               .seed = static_cast<std::uint64_t>(step + 1)};
    const test::ModelResult model = test::run_model(test);
    const reference::GptConfig shape = test::reference_config(test.config);
    const reference::GptBatch batch = test::reference_batch(test, model);
    const GptResult truth = run_gpt(GptArithmetic::kFp64, shape, model.weights, batch);
    const GptResult own = run_gpt(own_arithmetic(), shape, model.weights, batch);

    const std::vector<double> loss = by_microbatch<double>(truth.losses, test.microbatches);
    ASSERT_EQ(model.losses.size(), loss.size());
    errors["loss"].model += squared_distance(model.losses, loss);
    errors["loss"].reference += squared_distance(by_microbatch<float>(own.losses, test.microbatches), loss);
    errors["loss"].size += squared_size(loss);
    ASSERT_EQ(model.gradients.size(), truth.gradients.size());
    for (const auto& [name, want] : truth.gradients) {
      const auto got = model.gradients.find(name);
      ASSERT_NE(got, model.gradients.end()) << name;
      ASSERT_EQ(got->second.size(), want.size()) << name;
      errors[name].model += squared_distance(got->second, want);
      errors[name].reference += squared_distance(own.gradients.at(name), want);
      errors[name].size += squared_size(want);
    }
  }
  double worst = 0;
  for (const auto& [name, error] : errors) {
    const double ratio = std::sqrt(error.model / error.reference);
    worst = std::max(worst, ratio);
    RecordProperty(name, std::to_string(ratio) + " of " + std::to_string(std::sqrt(error.reference / error.size)));
    EXPECT_GT(error.reference, 0) << name << ": the reference has no error, so it bounds nothing";
    // A gradient may cancel in exact arithmetic, such as that of a bias of all keys without rotary positions. It is
    // then only rounding, and depends on an implementation's roundings.
    const double limit = error.size < 1e-12 * error.reference ? 4 : 2;
    EXPECT_LE(ratio, limit) << name << ": the model is off by " << std::sqrt(error.model) << ", the reference by "
                            << std::sqrt(error.reference) << " of " << std::sqrt(error.size);
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_P(GptGradients, AreAsCloseToFp64AsAnIndependentModelOfTheSameDtype) { compare(0, true); }
TEST_P(GptGradients, AreAsCloseWithTheLossInChunks) { compare(10, true); }
// GELU in the GEMM, and on CUDA attention's other backward.
TEST_P(GptGradients, AreAsCloseWithoutDeterministicMode) { compare(0, false); }

}  // namespace
}  // namespace megalith

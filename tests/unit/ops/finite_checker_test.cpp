// The first NaN or Inf of a sequence of ops is named, with its op, tensor, place and element.
#include "core/tensor/finite_checker.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/ops/elementwise/elementwise.h"
#include "core/ops/op.h"
#include "core/tensor/bf16.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"

namespace megalith {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class FiniteCheckerTest : public testing::Test {
 protected:
  void start() {
    checker_.start([this](const void* address) -> std::string {
      if (address == a_.data()) return "a";
      return address == b_.data() ? "b" : "";
    });
  }
  void fill(const Tensor& x, double value) { launch(stream_, Fill{.x = x, .value = value}); }
  Tensor a() { return Tensor(a_.data(), DType::kFp32, {12}); }
  Tensor b() { return Tensor(b_.data(), DType::kFp32, {12}); }
  std::string found() {
    const std::optional<NonFinite> first = checker_.stop();
    return first ? first->place + ": " + to_string(*first) : "nothing";
  }

  std::vector<float> a_ = std::vector<float>(12, 1);
  std::vector<float> b_ = std::vector<float>(12, 1);
  FiniteChecker checker_;
  Stream stream_{DeviceType::kCpu, "compute", Instruments{.observer = checker_.observer()}};
};

TEST_F(FiniteCheckerTest, NamesTheFirst) {
  start();
  checker_.set_place("before");
  fill(a(), 2);
  checker_.set_place("here");
  fill(a().slice(0, 4, 3), -kInfinity);
  checker_.set_place("later");
  fill(b(), std::nan(""));
  EXPECT_EQ(found(), "here: fill wrote -inf to \"unnamed\" (fp32, element 0 of 3, 3 not finite)");
  start();  // no earlier finding remains
  fill(b(), std::nan(""));
  EXPECT_EQ(found(), ": fill wrote nan to \"b\" (fp32, element 0 of 12, 12 not finite)");
}

TEST_F(FiniteCheckerTest, SaysThatAnInputWasThere) {
  a_[7] = std::numeric_limits<float>::quiet_NaN();
  start();
  fill(b(), 1);
  launch(stream_, Add{.a = a(), .b = b(), .y = b()});
  EXPECT_EQ(found(), ": add read nan from \"a\" (fp32, element 7 of 12, 1 not finite)");
}

// An input that the op overwrote is gone.
TEST_F(FiniteCheckerTest, AnInputThatWasOverwrittenIsNotLookedAt) {
  a_[0] = std::numeric_limits<float>::infinity();
  start();
  launch(stream_, Add{.a = a(), .b = b(), .y = a()});
  EXPECT_EQ(found(), ": add wrote inf to \"a\" (fp32, element 0 of 12, 1 not finite)");
}

TEST_F(FiniteCheckerTest, FiniteSumsThatOverflow) {
  a_[3] = b_[3] = 3e38f;
  std::vector<float> y(12);
  start();
  launch(stream_, Add{.a = a(), .b = b(), .y = Tensor(y.data(), DType::kFp32, {12})});
  EXPECT_EQ(found(), ": add wrote inf to \"unnamed\" (fp32, element 3 of 12, 1 not finite)");
}

// Elements in the gaps of a strided view do not count.
TEST_F(FiniteCheckerTest, LooksAtTheElementsOfAView) {
  a_[1] = a_[4] = std::numeric_limits<float>::quiet_NaN();
  const Tensor left = a().view({4, 3}).slice(1, 0, 1);  // elements 0, 3, 6, 9
  std::vector<float> y(4);
  start();
  launch(stream_, Copy{.src = left, .dst = Tensor(y.data(), DType::kFp32, {4, 1})});
  EXPECT_EQ(found(), "nothing");
  start();
  fill(left, kInfinity);
  EXPECT_EQ(found(), ": fill wrote inf to \"a\" (fp32, element 0 of 4, 4 not finite)");
}

TEST_F(FiniteCheckerTest, KnowsTheOtherDtypes) {
  std::vector<bf16> small(5);
  std::vector<double> large(5);
  std::vector<std::int32_t> whole(5, -1);  // the bits of a NaN
  start();
  fill(Tensor(whole.data(), DType::kInt32, {5}), -1);
  fill(Tensor(small.data(), DType::kBf16, {5}), 1e39);
  EXPECT_EQ(found(), ": fill wrote inf to \"unnamed\" (bf16, element 0 of 5, 5 not finite)");
  start();
  fill(Tensor(large.data(), DType::kFp64, {5}), 1e39);
  fill(Tensor(large.data(), DType::kFp64, {5}), std::nan(""));
  EXPECT_EQ(found(), ": fill wrote nan to \"unnamed\" (fp64, element 0 of 5, 5 not finite)");
}

// Rows that belong to no expert hold whatever was there.
TEST_F(FiniteCheckerTest, LooksAtRowsOfExpertsAlone) {
  b_[11] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::int32_t> ends{0, 1, 2};
  std::vector<float> weights{1, 1, 1}, rows(6, std::numeric_limits<float>::quiet_NaN());
  const RoutedSwigluForward op{.x = b().view({3, 4}),
                               .row_weight = Tensor(weights.data(), DType::kFp32, {3}),
                               .offsets = Tensor(ends.data(), DType::kInt32, {3}),
                               .y = Tensor(rows.data(), DType::kFp32, {3, 2})};
  start();
  launch(stream_, op);
  EXPECT_EQ(found(), "nothing");
  ends[2] = 3;
  start();
  launch(stream_, op);
  EXPECT_EQ(found(), ": routed_swiglu_forward read nan from \"b\" (fp32, element 11 of 12, 1 not finite)");
}

TEST_F(FiniteCheckerTest, LooksAtNothingUnlessStarted) {
  fill(a(), kInfinity);
  start();
  checker_.cancel();
  fill(a(), kInfinity);
  EXPECT_EQ(found(), "nothing");
  start();
  EXPECT_EQ(found(), "nothing");
  stream_.synchronize();
}

}  // namespace
}  // namespace megalith

// Misuse of grouped GEMMs is found: workspaces that are shared, indices out of range.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/device/stream.h"
#include "core/instruments/hazard_checker.h"
#include "moe/ops/grouped_gemm/grouped_gemm.h"
#include "tests/unit/ops/moe/routed_rows.h"

namespace megalith::test {
namespace {

// On a GPU the blocks of a product draw its tiles from a counter in the workspace.
TEST(GroupedGemmWorkspace, IsAHazardWhereProductsThatMayMeetShareIt) {
  std::vector<std::int32_t> offsets{0, 2};
  std::vector<float> values(64), workspaces(2);
  const auto fp32 = [&](std::int64_t at, const Shape& shape) { return Tensor(&values.at(at), DType::kFp32, shape); };
  const auto workspace = [&](std::size_t at) { return Tensor(&workspaces.at(at), DType::kUint8, {4}); };
  const auto hazards = [&](const auto& first, auto second, std::size_t own) {
    HazardChecker checker;
    Stream one(DeviceType::kCpu, "one", {.hazards = &checker}), other(DeviceType::kCpu, "other", {.hazards = &checker});
    second.workspace = workspace(own);
    launch(one, first);
    launch(other, second);
    one.synchronize();
    other.synchronize();
    return checker.hazards().size();
  };
  const Tensor ends(offsets.data(), DType::kInt32, {2});
  GroupedGemm product{.a = fp32(0, {2, 2}), .offsets = ends, .b = fp32(4, {2, 2}), .c = fp32(8, {2, 2})};
  product.workspace = workspace(0);
  GroupedGemm another = product;
  another.c = fp32(12, {2, 2});
  const GroupedGemmWgrad gradient{.a = product.a, .b = product.a, .offsets = ends, .c = fp32(16, {2, 2})};
  const GroupedGemmSwiglu forward{.a = product.a,
                                  .offsets = ends,
                                  .gate = product.b,
                                  .up = product.b,
                                  .row_weight = fp32(20, {2}),
                                  .h = fp32(22, {2, 4}),
                                  .y = fp32(12, {2, 2})};
  EXPECT_EQ(hazards(product, another, 0), 1u);
  EXPECT_EQ(hazards(product, another, 1), 0u);
  EXPECT_EQ(hazards(product, gradient, 0), 1u);
  EXPECT_EQ(hazards(product, gradient, 1), 0u);
  EXPECT_EQ(hazards(product, forward, 0), 1u);
  EXPECT_EQ(hazards(product, forward, 1), 0u);
  const GroupedGemmSwigluBackward backward{.dy = product.a,
                                           .offsets = ends,
                                           .b = product.b,
                                           .h = forward.h,
                                           .row_weight = forward.row_weight,
                                           .dh = fp32(32, {2, 4}),
                                           .y = fp32(40, {2, 2}),
                                           .d_row_weight_partial = fp32(44, {2, 1})};
  EXPECT_EQ(hazards(product, backward, 0), 1u);
  EXPECT_EQ(hazards(product, backward, 1), 0u);
  EXPECT_GT(workspace_bytes(product, DeviceType::kCuda), 0u);
}

// On CUDA a build with assertions checks indices: presets cuda-sanitizer and Debug.
class GatheredIndexTest : public RoutedTest {
 protected:
  static constexpr std::int64_t kExperts = 2, kWidth = 64;  // a stage of Hopper's kernels
  const Shape matrices{kExperts * kWidth, kWidth};

  static bool checks_indices(DeviceType device) {
#ifdef NDEBUG
    return device == DeviceType::kCpu;
#else
    return device == DeviceType::kCpu || device == DeviceType::kCuda;
#endif
  }
  // Six rows are live; entry 5 is the last one that is read.
  Tensor index_with(std::int64_t entry_5) {
    const auto beyond = static_cast<double>(kTokens + 7);
    return input({8}, DType::kInt32, Values{0, 9, 2, 3, 9, static_cast<double>(entry_5), beyond, -1});
  }
  template <class Visit>
  void for_each_op(std::int64_t entry_5, Visit&& visit) {
    const ExpertRanges routing{{0, 2, 6}, 8};
    const Tensor offsets = offsets_of(routing), index = index_with(entry_5), tokens = input({kTokens, kWidth});
    const Tensor rows = routed_input(routing, kWidth), sum = output(matrices, DType::kFp32);
    const Tensor weight = row_weights(routing), h = routed_input(routing, 2 * kWidth);
    for (const bool transposed : {true, false}) {
      visit(GroupedGemm{.a = tokens,
                        .index = index,
                        .offsets = offsets,
                        .b = input(matrices),
                        .c = output({8, kWidth}),
                        .transpose_b = transposed});
    }
    visit(
        GroupedGemmWgrad{.a = tokens, .a_index = index, .b = rows, .offsets = offsets, .c = sum, .accumulate = false});
    visit(
        GroupedGemmWgrad{.a = rows, .b = tokens, .b_index = index, .offsets = offsets, .c = sum, .accumulate = false});
    visit(GroupedGemmSwiglu{.a = tokens,
                            .index = index,
                            .offsets = offsets,
                            .gate = input(matrices),
                            .up = input(matrices),
                            .row_weight = weight,
                            .h = output({8, 2 * kWidth}),
                            .y = output({8, kWidth})});
    visit(GroupedGemmSwigluBackward{.dy = tokens,
                                    .index = index,
                                    .offsets = offsets,
                                    .b = input(matrices),
                                    .h = h,
                                    .row_weight = weight,
                                    .dh = output({8, 2 * kWidth}),
                                    .y = output({8, kWidth}),
                                    .d_row_weight_partial = output({8, 1}, DType::kFp32)});
  }
};
MEGALITH_OP_TESTS(GatheredIndexTest);

TEST_P(GatheredIndexTest, OutOfRangeIsReported) {
  if (!checks_indices(device())) GTEST_SKIP() << "a release build for CUDA trusts the index";
  for (const std::int64_t wrong : {kTokens, std::int64_t{-1}, kTokens + 100'000}) {
    const std::string want = "entry 5 of a table of routes: expected 0 to 9, got " + std::to_string(wrong);
    for_each_op(wrong, [&](const auto& op) { expect_kernel_error(op, ExitCode::kInternal, want); });
  }
}

TEST_P(GatheredIndexTest, RowsBeyondTheLastExpertAreNotChecked) {
  for_each_op(kTokens - 1, [&](const auto& op) {
    launch(stream(), ready(op));
    EXPECT_NO_THROW(stream().synchronize());
  });
}

}  // namespace
}  // namespace megalith::test

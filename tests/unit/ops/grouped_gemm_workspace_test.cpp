#include <gtest/gtest.h>

#include <vector>

#include "core/device/stream.h"
#include "core/instruments/hazard_checker.h"
#include "moe/ops/grouped_gemm.h"

namespace megalith::test {
namespace {

// On a GPU the blocks of a product take its tiles from a counter in the workspace.
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

}  // namespace
}  // namespace megalith::test

#include "core/ops/attention/rope.h"

#include <map>

#include "tests/reference/rope.h"
#include "tests/support/op_test.h"
#include "tests/support/reference_rope.h"
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
                                       .scaling = test::reference_scaling(op.scaling),
                                       .start = static_cast<std::size_t>(start),
                                       .positions = op.positions ? values(op.positions) : Values{}},
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

// Frequencies that are divided, mixed and kept, near position 0 and far out.
TEST_P(RopeTest, Scaled) {
  using enum RopeScalingKind;
  for (const RopeScaling& scaling : {RopeScaling{.kind = kLlama3, .factor = 8},
                                     {.kind = kLlama3,
                                     .factor = 3.5,
                                     .low_freq_factor = 0.5,
                                     .high_freq_factor = 9,
                                     .original_max_position_embeddings = 700},
                                     {.kind = kLinear, .factor = 2.5},
                                     {.kind = kYarn, .factor = 4, .original_max_position_embeddings = 32'768},
                                     {.kind = kYarn, .factor = 8, .mscale = 0.7, .mscale_all_dim = 1.5},
                                     {.kind = kYarn, .factor = 3, .truncate = false, .attention_factor = 1.25}}) {
    for (const bool backward : {false, true}) {
      for (const std::int32_t first : {0, 100'000}) {
        const Tensor x = input({1, 21, 2, 64}), y = output(x.shape);
        compare({.x = x,
                 .y = y,
                 .theta = 500'000.0f,
                 .rotary_dim = 64,
                 .scaling = scaling,
                 .backward = backward,
                 .start = device_struct(first)},
                first);
      }
    }
  }
}

TEST_P(RopeTest, AFactorOfOneScalesNothing) {
  const Tensor x = input({1, 9, 2, 20}), plain = output(x.shape), scaled = output(x.shape);
  run(Rope{.x = x, .y = plain, .rotary_dim = 20});
  const Values want = values(plain);  // the next run starts all outputs afresh
  for (const RopeScalingKind kind : {RopeScalingKind::kLlama3, RopeScalingKind::kLinear, RopeScalingKind::kYarn}) {
    run(Rope{.x = x,
             .y = scaled,
             .rotary_dim = 20,
             .scaling = {.kind = kind, .original_max_position_embeddings = 3, .mscale_all_dim = 3}});
    EXPECT_EQ(values(scaled), want);
  }
}

// 40 factors, each at another position up to 2 million, with other lengths, ranges, widths and scales.
TEST_P(RopeTest, YarnAtPositionsAndFactors) {
  for (int i = 0; i < 40; ++i) {
    const RopeScaling scaling{.kind = RopeScalingKind::kYarn,
                              .factor = 1 + 0.2 * i * i,
                              .original_max_position_embeddings = 16 << i % 14,
                              .beta_fast = 2.0 + i,
                              .beta_slow = 0.25 * (1 + i % 5),
                              .truncate = i % 3 != 0,
                              .mscale = 0.1 * (i % 7),
                              .mscale_all_dim = i % 2 == 0 ? 0 : 0.3 * (i % 5)};
    const std::int32_t first = 31 * i + 33 * i * i * i;
    const Tensor x = input({1, 3, 2, 68}), y = output(x.shape);
    compare({.x = x,
             .y = y,
             .theta = i % 2 == 0 ? 10'000.0f : 1'000'000.0f,
             .rotary_dim = 8 + 4 * (i % 16),
             .scaling = scaling,
             .backward = i % 2 == 1,
             .start = device_struct(first)},
            first);
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

// A late position, at which an angle in fp32 would be off by a tenth of a radian; any cut gives the same bits.
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

// Rows with their own positions: padding, packed documents, and any order.
TEST_P(RopeTest, Positions) {
  for (const bool backward : {false, true}) {
    Values positions = {-1, -1};
    for (int i = 0; i < 37; ++i) positions.push_back(i);
    for (int i = 0; i < 19; ++i) positions.push_back(i);
    for (int i = 0; i < 5; ++i) positions.push_back(1'000'000 - 3 * i);
    positions.push_back(-1);
    const Tensor x = input({2, 32, 3, 20}), y = output(x.shape);
    compare(
        {.x = x, .y = y, .rotary_dim = 18, .backward = backward, .positions = input({64}, DType::kInt32, positions)});
  }
}

// A document in a pack has the bits that it has alone, and a sequence those without positions.
TEST_P(RopeTest, PositionsGiveTheBitsOfASequence) {
  const Tensor x = input({2, 45, 2, 32}), y = output(x.shape);
  run(Rope{.x = x, .y = y, .rotary_dim = 32});
  const Values want = values(y);
  Values positions;
  for (int i = 0; i < 90; ++i) positions.push_back(i % 45);
  run(Rope{.x = x, .y = y, .rotary_dim = 32, .positions = input({90}, DType::kInt32, positions)});
  EXPECT_EQ(values(y), want);
  for (const std::int64_t cut : {1, 16, 30}) {
    for (std::int64_t i = 0; i < 45; ++i)
      positions[static_cast<std::size_t>(i)] = static_cast<double>(i < cut ? i : i - cut);
    run(Rope{.x = x, .y = y, .rotary_dim = 32, .positions = input({90}, DType::kInt32, positions)});
    const Values packed = values(y);
    const Tensor rest = x.slice(0, 0, 1).slice(1, cut, 45 - cut), alone = output(rest.shape);
    run(Rope{.x = rest, .y = alone, .rotary_dim = 32});
    EXPECT_EQ(values(alone), Values(packed.begin() + cut * 64, packed.begin() + 45 * 64));
  }
}

TEST_P(RopeTest, RefusesWhatDoesNotFit) {
  const Tensor x = input({1, 2, 3, 8}), y = output({1, 2, 3, 8});
  const Tensor positions = input({2}, DType::kInt32, {0, 1});
  const std::string_view part = "op.positions: expected neither op.start nor op.part";
  expect_refused(Rope{.x = x, .y = y, .rotary_dim = 8, .part = {.first = 1}, .positions = positions}, part);
  expect_refused(Rope{.x = x, .y = y, .rotary_dim = 8, .start = device_struct(std::int32_t{0}), .positions = positions},
                 part);
  expect_refused(Rope{.x = x, .y = y}, "op.rotary_dim: expected an even number of 2 to 8, got 0");
  expect_refused(Rope{.x = x, .y = y, .rotary_dim = 5}, "got 5");
  expect_refused(Rope{.x = x, .y = y, .rotary_dim = 10}, "got 10");
  expect_refused(Rope{.x = x, .y = y, .theta = 0, .rotary_dim = 8}, "op.theta: expected more than 0");
  using enum RopeScalingKind;
  for (const RopeScaling& scaling : {RopeScaling{.factor = 0.5},
                                     {.kind = kLinear, .factor = 0.5},
                                     {.kind = kLlama3, .factor = 2, .low_freq_factor = 0},
                                     {.kind = kLlama3, .factor = 2, .low_freq_factor = 4},
                                     {.kind = kLlama3, .factor = 2, .original_max_position_embeddings = 0}}) {
    expect_refused(Rope{.x = x, .y = y, .rotary_dim = 8, .scaling = scaling},
                   "op.scaling: expected a factor of at least 1");
  }
  for (const RopeScaling& scaling : {RopeScaling{.kind = kYarn, .beta_slow = 0},
                                     {.kind = kYarn, .beta_fast = 0.5},
                                     {.kind = kYarn, .mscale = -1},
                                     {.kind = kYarn, .mscale_all_dim = -1},
                                     {.kind = kYarn, .attention_factor = -1}}) {
    expect_refused(Rope{.x = x, .y = y, .rotary_dim = 8, .scaling = scaling}, "op.scaling: expected betas that fall");
  }
  expect_refused(Rope{.x = x, .y = y, .theta = 1, .rotary_dim = 8, .scaling = {.kind = kYarn}},
                 "op.theta: expected more than 1 for YaRN");
}

// Llama 3.1 8B's, as ROPE_INIT_FUNCTIONS["llama3"] of transformers 5.23 gives them in fp32.
TEST(RopeFrequency, IsThatOfTransformers) {
  const std::map<int, double> theirs = {{0, 1.0},
                                        {1, 0.8146172165870667},
                                        {28, 0.0032114461064338684},
                                        {29, 0.0021665706299245358},
                                        {30, 0.0013718936825171113},
                                        {34, 0.0001785077911335975},
                                        {35, 9.556212171446532e-05},
                                        {40, 3.428102354519069e-05},
                                        {63, 3.068925877869333e-07}};
  const RopeFrequencies ours = rope_frequencies(500'000, 64, {.kind = RopeScalingKind::kLlama3, .factor = 8});
  for (const auto& [pair, frequency] : theirs) EXPECT_NEAR(ours[pair] / frequency, 1, 5e-7) << pair;
}

}  // namespace
}  // namespace megalith::test

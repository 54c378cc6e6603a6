// Guarantees of every segment: a replay, a later backward_weight and every stash policy give the bits of the plain run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/layers/linear.h"
#include "core/layers/mlp.h"
#include "tests/support/device_cases.h"
#include "tests/unit/layers/segment_cases.h"

namespace megalith::test {
namespace {

class EverySegment : public testing::TestWithParam<NamedCase> {
 protected:
  void SetUp() override {
    if (const std::string reason = missing(GetParam().test.device); !reason.empty()) GTEST_SKIP() << reason;
  }
  SegmentCase test() const { return GetParam().test; }
};

INSTANTIATE_TEST_SUITE_P(Cases, EverySegment, testing::ValuesIn(all_segment_cases()), name_of_segment_case);

bool finite_and_not_all_zero(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }) &&
         std::any_of(values.begin(), values.end(), [](float x) { return x != 0; });
}

TEST_P(EverySegment, ReplaysBitForBit) {
  const SegmentResult eager = run_segment(test(), RunMode::kEager);
  const SegmentResult replayed = run_segment(test(), RunMode::kReplay);
  EXPECT_GE(replayed.captured_ops, 2);
  EXPECT_EQ(replayed.replays, 3);
  expect_same_bits(eager, replayed);
  for (std::size_t i = 0; i < eager.main_gradients.size(); ++i)
    EXPECT_TRUE(finite_and_not_all_zero(eager.main_gradients[i])) << eager.names[i];
  for (const std::vector<float>& gradient : eager.input_gradients) {
    EXPECT_TRUE(gradient.empty() || finite_and_not_all_zero(gradient));
  }
}

TEST_P(EverySegment, WeightGradientsMayComeAfterLaterMicrobatches) {
  SegmentCase with = test();
  with.microbatches = 3;
  const SegmentResult at_once = run_segment(with, RunMode::kEager);
  with.delay_weights = true;
  const SegmentResult later = run_segment(with, RunMode::kEager);
  expect_same_bits(at_once, later);
  expect_same_bits(at_once, run_segment(with, RunMode::kReplay));
  // Stashes of three microbatches are alive at once, unless a segment keeps only its inputs.
  EXPECT_GE(later.arena_bytes, at_once.arena_bytes + (at_once.activations.empty() ? 0 : 1));
}

TEST_P(EverySegment, EvaluatesAsItTrainsWithLessMemory) {
  SegmentCase with = test();
  const SegmentResult trained = run_segment(with, RunMode::kEager);
  with.mode = Mode::kEval;
  const SegmentResult evaluated = run_segment(with, RunMode::kEager);
  EXPECT_LE(evaluated.arena_bytes, trained.arena_bytes);
  EXPECT_TRUE(evaluated.input_gradients.empty());
  expect_same_bits(evaluated, run_segment(with, RunMode::kReplay));
  EXPECT_EQ(evaluated.outputs == trained.outputs, !GetParam().dropout) << "dropout acts in training alone";
  EXPECT_EQ(evaluated.loss, trained.loss);  // loss of the head; 0 elsewhere
}

// --recompute-modules by the kinds of slots they leave out.
struct Policy {
  std::string module;
  std::vector<SlotKind> kinds;
};
const std::vector<Policy>& policies() {
  static const std::vector<Policy> all = {
      {"core_attn", {SlotKind::kAttnProj}},
      {"layernorm", {SlotKind::kQkvLinear, SlotKind::kFc1}},
      {"mlp_act", {SlotKind::kFc2}},
      {"all", {SlotKind::kAttnProj, SlotKind::kQkvLinear, SlotKind::kFc1, SlotKind::kFc2}},
  };
  return all;
}

TEST_P(EverySegment, GivesTheSameBitsUnderEveryPolicy) {
  SegmentCase with = test();
  with.microbatches = 2;
  with.delay_weights = true;
  const SegmentResult kept = run_segment(with, RunMode::kEager);
  for (const Policy& policy : policies()) {
    SCOPED_TRACE(policy.module);
    with.policies = {};
    bool concerned = false;
    for (const SlotKind kind : policy.kinds) {
      with.policies[static_cast<std::size_t>(kind)] = StashPolicy::kRecompute;
      concerned = concerned || kept.activations.contains(std::string(name_of(kind)));
    }
    const SegmentResult recomputed = run_segment(with, RunMode::kEager);
    expect_same_bits(kept, recomputed);
    expect_same_bits(kept, run_segment(with, RunMode::kReplay));
    for (const SlotKind kind : policy.kinds)
      EXPECT_FALSE(recomputed.activations.contains(std::string(name_of(kind)))) << name_of(kind);
    EXPECT_EQ(recomputed.activations == kept.activations, !concerned);
  }
}

std::size_t total(const SegmentResult& result) {
  std::size_t bytes = 0;
  for (const auto& [kind, kept] : result.activations) bytes += kept;
  return bytes;
}

TEST(SegmentPolicies, ActOnAttentionAndMlp) {
  const SegmentResult attention = run_segment(segment_case("attention_gqa_rope").test, RunMode::kEager);
  for (const char* kind : {"attn_norm", "qkv_linear", "core_attn", "attn_proj"})
    EXPECT_GT(attention.activations.count(kind), 0u) << kind;
  const SegmentResult mlp = run_segment(segment_case("mlp_swiglu").test, RunMode::kEager);
  for (const char* kind : {"mlp_norm", "fc1", "act", "fc2"}) EXPECT_GT(mlp.activations.count(kind), 0u) << kind;

  for (const Policy& policy : policies()) {
    SCOPED_TRACE(policy.module);
    SegmentCase layer = segment_case("layer").test;
    const std::size_t before = total(run_segment(layer, RunMode::kEager));
    for (const SlotKind kind : policy.kinds) layer.policies[static_cast<std::size_t>(kind)] = StashPolicy::kRecompute;
    EXPECT_LT(total(run_segment(layer, RunMode::kEager)), before);
  }
}

class RecomputedSegment : public OnDevice<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Backends, RecomputedSegment, testing::ValuesIn(devices()), name_of_device_case);

TEST_P(RecomputedSegment, HasTheBitsOfThePlainOneAndKeepsItsInputsAlone) {
  for (const char* name : {"attention_mha_bias_dropout", "mlp_swiglu", "layer_qk_norm_dropout"}) {
    for (const char* dtype : {"", "_bf16"}) {
      SCOPED_TRACE(std::string(name) + dtype);
      SegmentCase plain = segment_case(std::string(name) + dtype, device()).test;
      SegmentCase recomputed = segment_case(std::string(name) + "_recomputed" + dtype, device()).test;
      plain.microbatches = recomputed.microbatches = 2;
      const SegmentResult kept = run_segment(plain, RunMode::kEager);
      const SegmentResult again = run_segment(recomputed, RunMode::kEager);
      expect_same_bits(kept, again);
      // Inputs of a segment are buffers of the test, so a recomputed one keeps no tensors.
      EXPECT_TRUE(again.activations.empty());
      EXPECT_FALSE(kept.activations.empty());
    }
  }
}

// An MLP whose GEMMs can fuse the GELU, or cannot, as they are split. On one rank nothing else differs.
template <bool fused>
std::unique_ptr<Segment> gelu_mlp(ParameterStore& store) {
  static RowExchange one_rank;
  const auto linear = [&](const LinearSpec& spec) { return std::make_unique<Linear>(store, spec, one_rank); };
  Mlp::Parts parts{.norm = Norm(store, {.name = "norm", .size = 24, .input_kind = SlotKind::kMlpNorm})};
  parts.fc1 = linear({.name = "fc1",
                      .inputs = 24,
                      .outputs = 40,
                      .bias = true,
                      .input_kind = SlotKind::kFc1,
                      .splits_inputs = !fused});
  parts.fc2 = linear(
      {.name = "fc2", .inputs = 40, .outputs = 24, .bias = true, .input_kind = SlotKind::kFc2, .splits_inputs = fused});
  return std::make_unique<Mlp>(Mlp::Spec{.activation = Activation::kGeluTanh}, std::move(parts));
}

TEST(GeluInTheGemm, HasTheBitsOfAnOpOfItsOwnOnTheCpu) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    SegmentCase with{.build = gelu_mlp<true>, .dtype = dtype, .inputs = {{18, 24}, {18, 24}}, .gradients = 2};
    with.weight_std = 0.3f;
    const SegmentResult unfused_forward = run_segment(with, RunMode::kReplay);
    with.deterministic = false;
    const SegmentResult fused = run_segment(with, RunMode::kReplay);
    EXPECT_EQ(unfused_forward.captured_ops, fused.captured_ops + 1);
    expect_same_bits(fused, unfused_forward);
    expect_same_bits(fused, run_segment(with, RunMode::kEager));
    with.policies[static_cast<std::size_t>(SlotKind::kFc2)] = StashPolicy::kRecompute;
    expect_same_bits(fused, run_segment(with, RunMode::kEager));
    with.policies = {};
    with.build = gelu_mlp<false>;
    const SegmentResult unfused = run_segment(with, RunMode::kReplay);
    EXPECT_EQ(unfused.captured_ops, fused.captured_ops + 2);
    expect_same_bits(fused, unfused);
  }
}

// Without --deterministic-mode the GEMM's GELU reads the sum ahead of its rounding to bf16. On CUDA only the same
// execution gives the same bits.
class FusedGelu : public OnDevice<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Backends, FusedGelu, testing::ValuesIn(devices()), name_of_device_case);

TEST_P(FusedGelu, RepeatsAndReplaysBitForBit) {
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    SegmentCase with{.build = gelu_mlp<true>,
                     .dtype = dtype,
                     .inputs = {{18, 24}, {18, 24}},
                     .gradients = 2,
                     .deterministic = false,
                     .device = device(),
                     .weight_std = 0.3f};
    const SegmentResult eager = run_segment(with, RunMode::kEager);
    expect_same_bits(eager, run_segment(with, RunMode::kEager));
    expect_same_bits(eager, run_segment(with, RunMode::kReplay));
  }
}

// Outputs and every gradient of a fused projection are those of its parts, side by side.
TEST(FusedLinear, IsItsPartsSideBySide) {
  const auto linear = [](std::vector<LinearSpec::Part> parts, const std::string& name, std::int64_t outputs) {
    return SegmentCase{
        .build =
            [=](ParameterStore& store) {
              static RowExchange one_rank;
              return std::make_unique<Linear>(
                  store,
                  LinearSpec{
                      .name = name, .inputs = 16, .outputs = outputs, .bias = true, .init_std = 0.5f, .parts = parts},
                  one_rank);
            },
        .inputs = {{5, 16}}};
  };
  const SegmentResult fused = run_segment(linear({{"q", 8}, {"k", 3}}, "qk", 11), RunMode::kEager);
  const SegmentResult q = run_segment(linear({}, "q", 8), RunMode::kEager);
  const SegmentResult k = run_segment(linear({}, "k", 3), RunMode::kEager);
  ASSERT_EQ(fused.inputs, q.inputs);
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t o = 0; o < 11; ++o) {
      const float part = o < 8 ? q.outputs[0][row * 8 + o] : k.outputs[0][row * 3 + o - 8];
      EXPECT_EQ(fused.outputs[0][row * 11 + o], part) << row << ' ' << o;
    }
  }
  std::vector<float> weights = q.weights[0];
  weights.insert(weights.end(), k.weights[0].begin(), k.weights[0].end());
  EXPECT_EQ(fused.weights[0], weights);
}

}  // namespace
}  // namespace megalith::test

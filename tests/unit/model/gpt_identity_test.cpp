// Variants of one step that must not change a bit: replay, recompute, the order of microbatches and of backward_weight.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/device_cases.h"
#include "tests/unit/model/model_families.h"
#include "tests/unit/model/model_run.h"

namespace megalith::test {
namespace {

struct Variant {
  std::string family;
  DType dtype;
  DeviceType device;
};
std::string name_of_variant(const testing::TestParamInfo<Variant>& info) {
  return info.param.family + "_" + std::string(name_of(info.param.dtype)) + "_" +
         std::string(name_of(info.param.device));
}
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.family; }

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const DeviceType device : devices()) {
    all.push_back({"gpt2_dropout", DType::kFp32, device});
    all.push_back({"qwen3_dropout", DType::kFp32, device});
    all.push_back({"qwen3_dropout", DType::kBf16, device});
    all.push_back({"nope", DType::kBf16, device});
  }
  return all;
}

class GptIdentity : public OnDevice<Variant> {
 protected:
  ModelCase plain() const {
    return {.config = family(GetParam().family, GetParam().dtype, device()), .microbatches = 4, .device = device()};
  }
};

INSTANTIATE_TEST_SUITE_P(Models, GptIdentity, testing::ValuesIn(variants()), name_of_variant);

// Kinds of kept activations in the plan of a step.
std::set<std::string> kept_kinds(const ModelResult& result) {
  std::set<std::string> kinds;
  for (const auto& [key, slot] : result.plan.slots) {
    if (slot.category == MemoryCategory::kActivations) kinds.insert(slot.owner);
  }
  return kinds;
}

std::size_t kept_bytes(const ModelResult& result) {
  std::size_t bytes = 0;
  for (const auto& [key, slot] : result.plan.slots) {
    if (slot.category == MemoryCategory::kActivations) bytes += slot.bytes;
  }
  return bytes;
}

TEST_P(GptIdentity, TwoRunsAgree) {
  const ModelResult a = run_model(plain());
  expect_same_bits(a, run_model(plain()));
  ModelCase other = plain();
  other.seed = 2;
  EXPECT_NE(run_model(other).losses, a.losses);
}

TEST_P(GptIdentity, AReplayOfEverySegmentAgrees) {
  ModelCase with = plain();
  const ModelResult eager = run_model(with);
  with.replay = true;
  const ModelResult replayed = run_model(with);
  expect_same_bits(eager, replayed);
  // Embedding, two layers of two, head; three verbs; four microbatches.
  EXPECT_EQ(replayed.replays, 2 * 6 * 3 * 4);
  EXPECT_GT(2 * replayed.captured_ops, replayed.replays);
  EXPECT_EQ(eager.replays, 0);
}

TEST_P(GptIdentity, TheArenaIsAsLargeAsPlanned) {
  const ModelResult result = run_model(plain());
  EXPECT_EQ(result.touched_bytes, result.plan.peak_bytes);
  EXPECT_GE(result.plan.peak_bytes, result.plan.live_bytes);
}

struct Module {
  std::string name;
  std::vector<SlotKind> kinds;
};
const std::vector<Module> kModules = {{"core_attn", {SlotKind::kAttnProj}},
                                      {"layernorm", {SlotKind::kQkvLinear, SlotKind::kFc1}},
                                      {"mlp_act", {SlotKind::kFc2}}};

SlotPolicies recompute(const Module& module) {
  SlotPolicies policies{};
  for (const SlotKind kind : module.kinds) policies[static_cast<std::size_t>(kind)] = StashPolicy::kRecompute;
  return policies;
}

TEST_P(GptIdentity, SelectiveRecomputeAgrees) {
  const ModelResult kept = run_model(plain());
  for (const Module& module : kModules) {
    SCOPED_TRACE(module.name);
    ModelCase with = plain();
    with.policies = recompute(module);
    const ModelResult recomputed = run_model(with);
    expect_same_bits(kept, recomputed);
    for (const SlotKind kind : module.kinds) {
      EXPECT_TRUE(kept_kinds(kept).contains(std::string(name_of(kind)))) << name_of(kind);
      EXPECT_FALSE(kept_kinds(recomputed).contains(std::string(name_of(kind)))) << name_of(kind);
    }
    EXPECT_LT(kept_bytes(recomputed), kept_bytes(kept));
    EXPECT_GT(recomputed.accessed_bytes, kept.accessed_bytes) << "something must have been made again";
  }
}

TEST_P(GptIdentity, RecomputeOfWholeLayersAgrees) {
  const ModelResult kept = run_model(plain());
  const std::vector<std::pair<std::string, RecomputeLayers>> ways = {
      {"each layer", {.ranges = {{.first = 0, .count = 1}, {.first = 1, .count = 1}}}},
      {"both together", {.ranges = {{.first = 0, .count = 2}}}},
      {"the second alone", {.ranges = {{.first = 1, .count = 1}}}},
      {"each MLP", {.ranges = {}, .mlps = {{.first = 0, .count = 2}}}},
      {"the first layer and the MLP of the other",
       {.ranges = {{.first = 0, .count = 1}}, .mlps = {{.first = 0, .count = 2}}}},
  };
  for (const auto& [name, layers] : ways) {
    SCOPED_TRACE(name);
    ModelCase with = plain();
    with.recompute = layers;
    const ModelResult recomputed = run_model(with);
    expect_same_bits(kept, recomputed);
    EXPECT_LT(kept_bytes(recomputed), kept_bytes(kept));
    EXPECT_GT(recomputed.planned_ops, kept.planned_ops);
    with.replay = true;
    expect_same_bits(kept, run_model(with));
  }
  ModelCase all = plain();
  all.recompute = {.ranges = {{.first = 0, .count = 2}}};
  for (const char* kind : {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "fc1", "act", "fc2"})
    EXPECT_FALSE(kept_kinds(run_model(all)).contains(kind)) << kind;
}

TEST_P(GptIdentity, TheOrderOfVerbsDoesNotMatter) {
  const ModelResult one_by_one = run_model(plain());
  EXPECT_EQ(one_by_one.columns, 1);
  for (const int in_flight : {2, 4}) {
    for (const bool delayed : {false, true}) {
      SCOPED_TRACE(std::to_string(in_flight) + (delayed ? " delayed" : ""));
      ModelCase with = plain();
      with.in_flight = in_flight;
      with.delay_weights = delayed;
      const ModelResult other = run_model(with);
      EXPECT_EQ(other.columns, delayed ? 4 : in_flight);
      expect_same_bits(one_by_one, other);
      EXPECT_GT(other.plan.peak_bytes, one_by_one.plan.peak_bytes);
    }
  }
}

TEST_P(GptIdentity, EverythingAtOnceAgrees) {
  ModelCase with = plain();
  with.recompute = {.ranges = {{.first = 1, .count = 1}}, .mlps = {{.first = 0, .count = 2}}};
  for (const Module& module : kModules) {
    for (const SlotKind kind : module.kinds) with.policies[static_cast<std::size_t>(kind)] = StashPolicy::kRecompute;
  }
  with.in_flight = 3;
  with.delay_weights = true;
  with.replay = true;
  expect_same_bits(run_model(plain()), run_model(with));
}

// Per-sample arithmetic does not depend on the other samples of the microbatch; only the sums of gradients do. On CUDA
// a GEMM of other sizes sums in another order. Differences are within those between layouts in fp32, and within a
// rounding in bf16.
TEST_P(GptIdentity, LossesDoNotDependOnTheMicrobatchSize) {
  ModelCase with = plain();
  with.sequences = 1;
  with.microbatches = 8;
  const std::vector<float> single = run_model(with).losses;
  with.sequences = 4;
  with.microbatches = 2;
  const std::vector<float> four = run_model(with).losses;
  const double fp32 = device() == DeviceType::kCpu ? 1e-6 : 1e-5;
  const double allowed =
      device() == DeviceType::kCuda && GetParam().dtype == DType::kBf16 ? unit_roundoff(DType::kBf16) : fp32;
  ASSERT_EQ(single.size(), 8u);
  ASSERT_EQ(four.size(), 2u);
  for (std::size_t m = 0; m < 2; ++m) {
    const float sum = single[4 * m] + single[4 * m + 1] + single[4 * m + 2] + single[4 * m + 3];
    EXPECT_NEAR(four[m], sum, allowed * sum);
  }
}

class GptEvaluation : public OnDevice<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Backends, GptEvaluation, testing::ValuesIn(devices()), name_of_device_case);

TEST_P(GptEvaluation, GivesTheLossOfTrainingAndKeepsNothing) {
  ModelCase with{.config = family("llama"), .microbatches = 3, .device = device()};
  const ModelResult trained = run_model(with);
  with.mode = Mode::kEval;
  const ModelResult evaluated = run_model(with);
  EXPECT_EQ(evaluated.losses, trained.losses);
  EXPECT_TRUE(kept_kinds(evaluated).empty());
  EXPECT_LT(evaluated.plan.peak_bytes, trained.plan.peak_bytes);
  // Memory that a layer leaked would add up over layers.
  with.config.num_layers = 5;
  EXPECT_EQ(run_model(with).plan.live_bytes, evaluated.plan.live_bytes);
}

}  // namespace
}  // namespace megalith::test

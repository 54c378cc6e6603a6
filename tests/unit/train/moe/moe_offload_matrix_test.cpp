// Each kind of offloaded activations, all of them and those that a forecast chooses, with keeping and recomputing. Runs
// are eager and in graphs, with every schedule and sharding, in dense models and models with experts. All have the bits
// of one eager run that keeps everything. The quick tier and sanitizers run each two values of two factors together
// once; elsewhere all combinations run, with rotating layouts.
#include <gtest/gtest.h>

#include "tests/support/tier.h"
#include "tests/unit/train/graph_cells.h"

namespace megalith::test {
namespace {

enum Factor { kModel, kWay, kModules, kSharing, kSchedule, kLayout, kNumFactors };
using OffloadTable = Matrix<kNumFactors>;
using Case = OffloadTable::Case;

// Every other layer has experts, the first one too.
const Words kExperts =
    llama_flags() + Words{"--bf16", "--ffn-hidden-size", "32", "--num-experts",    "4", "--moe-ffn-hidden-size",
                          "16",     "--moe-router-topk", "2",  "--moe-layer-freq", "2", "--moe-aux-loss-coeff",
                          "0.1"};
const std::vector<Words> kModels = {{},
                                    kExperts,
                                    kExperts + Words{"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"},
                                    kExperts + Words{"--expert-model-parallel-size", "2"}};
enum Model { kDense, kUnfused, kFused, kEp2 };

const Words kDenseKinds = {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "fc1", "act", "fc2"};
struct Moved {
  Words offloads = {};  // words of --offload-modules
  Words more = {};
  bool needs_experts = false, is_full = false;  // full recomputation
};
Words recompute(const Words& modules) {
  return Words{"--recompute-granularity", "selective", "--recompute-modules"} + modules;
}
const std::vector<Moved>& ways() {
  static const std::vector<Moved> all = [] {
    const Words full = {"--recompute-granularity", "full"};
    std::vector<Moved> list = {
        {},
        {.more = recompute({"core_attn", "layernorm"})},
        {.more = full, .is_full = true},
        {.offloads = {"layer_input"}, .more = full, .is_full = true},
        {.offloads = {"auto"}, .more = {"--rates", MEGALITH_SOURCE_DIR "/configs/rates/h200.toml"}},
        {.offloads = kDenseKinds},
        {.offloads = {"attn_norm", "qkv_linear", "core_attn", "mlp_norm", "act:1-3"}, .more = recompute({"core_attn"})},
        // The experts' inputs and gates are offloaded; the output of their activation is recomputed.
        {.offloads = {"expert_fc1", "moe_act"}, .more = recompute({"moe_act"}), .needs_experts = true},
        {.offloads = {"fused_group_mlp"}, .more = {"--offload-distance", "0"}, .needs_experts = true},
        {.offloads = kDenseKinds + Words{"fused_group_mlp"}, .needs_experts = true}};
    for (const std::string& kind : kDenseKinds) list.push_back({.offloads = {kind}});
    for (const char* kind : {"expert_fc1", "moe_act", "expert_fc2"})
      list.push_back({.offloads = {kind}, .needs_experts = true});
    return list;
  }();
  return all;
}
const std::vector<Words> kModuleSets = {{}, {"layer"}, {"attn"}};  // in graphs; the first one eager
const std::vector<Sharing> kSharings = {Sharing::kNone, Sharing::kOptimizer, Sharing::kUnits};
const std::vector<Layout> kLayouts = {{.data = 2}, {.pipeline = 2, .data = 2}};

bool is_legal(const Case& c) {
  const Moved& way = at(ways(), c, kWay);
  if (way.is_full && at(kModuleSets, c, kModules) == Words{"attn"}) return false;  // a layer is one segment then
  return !way.needs_experts || c[kModel] != kDense;
}

// One run for each model and layout, for all sharding except one, which has another order of sums.
Case plain_of(const Case& c) {
  Case plain{};
  plain[kModel] = c[kModel] == kFused ? kUnfused : c[kModel];
  plain[kLayout] = c[kLayout];
  plain[kSchedule] = 1;
  plain[kSharing] = at(kSharings, c, kSharing) == Sharing::kUnits ? c[kSharing] : 0;
  return plain;
}

constexpr int kSteps = 3;
constexpr std::int64_t kMicrobatches = 4;  // per replica

const OffloadTable& offload_table() {
  static const OffloadTable table{
      .base = {.more = {"--check-hazards"}, .steps = kSteps, .eval_interval = 2},
      .columns = {flag_column(kModels),
                  column(ways(),
                         [](Cell& cell, const Moved& way) {
                           const Words moved = way.offloads.empty() ? Words{} : offload(way.offloads);
                           cell.more = cell.more + way.more + moved;
                         }),
                  module_column(kModuleSets), sharing_column(kSharings), schedule_column(), layout_column(kLayouts)},
      .is_legal = is_legal,
      .plain = plain_of};
  return table;
}

std::vector<Case> chosen_cases() {
  const OffloadTable& table = offload_table();
  if (kIsSlow || one_of(2) > 1) return pairwise<kNumFactors>(table.legal_cases());
  std::vector<Case> cases = table.legal_cases({{kLayout, 1}});
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i][kLayout] = table.by_turns(i, kLayout, 7);
  return cases;
}

// Each moving slot moves out and back once per microbatch, and some rank has one.
void expect_slots_moved(const Case& c, const RunResult& run) {
  const std::int64_t slots = expect_moved(run, kSteps * kMicrobatches);
  for (const RankActivity& rank : run.ranks) EXPECT_EQ(rank.host_planned > 0, rank.slots > 0);
  const Words& offloads = at(ways(), c, kWay).offloads;
  // Experts on zb-v with one layer a chunk: forwarded within the stage, sent, or needed again at once.
  const Layout layout = offload_table().cell(c).layout;
  const bool stays =
      c[kModel] != kDense && layout.schedule == "zb-v" && layout.pipeline == 2 && offloads == Words{"mlp_norm"};
  EXPECT_EQ(slots > 0, !offloads.empty() && !stays);
}

class OffloadMatrix : public testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Models, OffloadMatrix, testing::Values(kDense, kUnfused, kEp2), [](const auto& model) {
  return std::string(model.param == kDense ? "dense" : model.param == kUnfused ? "experts" : "ep2");
});

TEST_P(OffloadMatrix, ChangesNoBit) {
  std::vector<Case> cases = chosen_cases();
  std::erase_if(cases, [](const Case& c) { return plain_of(c)[kModel] != GetParam(); });
  EXPECT_GE(cases.size(), 15u);
  int replayed = 0;
  const auto check = [&](const Case& c, const Cell& cell, const RunResult& got, const RunResult& want) {
    expect_same_state(got, want);
    expect_slots_moved(c, got);
    replayed += cell.modules.empty() ? 0 : 1;
  };
  offload_table().expect_no_bit_changed(cases, check);
  EXPECT_GE(replayed, 5);
}

}  // namespace
}  // namespace megalith::test

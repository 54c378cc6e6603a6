// Models with experts in a table of all options that must change no bit: graphs of any modules, recomputation, fusion,
// schedules, sharding of replicas' state, dispatchers. In the quick tier, each two values of two factors occur together
// once. In other tiers, each combination of expert options does, with rotating schedules and layouts.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "tests/support/tier.h"
#include "tests/unit/train/graph_cells.h"
#include "tests/unit/train/moe/moe_families.h"

namespace megalith::test {
namespace {

enum Factor { kFamily, kModules, kRecompute, kFused, kSharing, kSlots, kWay, kSchedule, kLayout, kNumFactors };
using MoeTable = Matrix<kNumFactors>;
using Case = MoeTable::Case;

// Sets of graphed modules; the first one is eager.
const std::vector<Words> kModuleSets = {
    {}, {"attn"}, {"attn", "moe_router", "moe_preprocess"}, {"moe_router"}, {"attn", "moe"}, {"layer"}};
const std::vector<Words> kRecomputed = {
    {},
    {"--recompute-granularity", "selective", "--recompute-modules", "moe_act", "layernorm"},
    {"--recompute-granularity", "selective", "--recompute-modules", "shared_experts", "core_attn"},
    {"--recompute-granularity", "selective", "--recompute-modules", "moe"},
    {"--recompute-granularity", "full"}};
const std::vector<Words> kFusions = {{}, {"--moe-grouped-gemm", "--use-transformer-engine-op-fuser"}};
const std::vector<Sharing> kSharings = {
    Sharing::kNone,      Sharing::kOptimizer,           Sharing::kUnits,      Sharing::kUnitsSummedLast,
    Sharing::kGradients, Sharing::kUnitsOfTwoInstances, Sharing::kExpertUnits};
constexpr int kUnitsAlone = 2;  // index of kUnits
const std::vector<Words> kSlotCounts = {{},
                                        {"--fsdp-unit-slots", "1", "--fsdp-prefetch", "0"},
                                        {"--fsdp-unit-slots", "3", "--fsdp-prefetch", "2"},
                                        {"--fsdp-gradient-slots", "1"}};
const std::vector<Layout> kLayouts = {{.data = 2},
                                      {.tensor = 2, .sequence = true, .data = 2},
                                      {.pipeline = 2, .data = 2},
                                      {.context = 2, .communication = "all_gather"},
                                      {.data = 4, .expert = 2},
                                      {.pipeline = 2, .data = 2, .expert = 2},
                                      {.data = 4, .expert = 4}};
// Dispatchers, for layouts with .expert.
const std::vector<Words> kWays = {
    {}, {"--moe-token-dispatcher-type", "allgather"}, {"--moe-shared-expert-overlap"}, {"--moe-combine-groups", "4"}};
constexpr int kGroups = 3;  // adds up in another order

const MoeTable& moe_table();
Layout layout_of(const Case& c) { return moe_table().cell(c).layout; }

bool is_legal(const Case& c) {
  const Words& modules = at(kModuleSets, c, kModules);
  const bool has_router = modules.size() == 3 || modules == Words{"moe_router"};
  if (c[kRecompute] == 3 && has_router) return false;  // a layer of experts is one segment then
  if (c[kRecompute] == 4 && !modules.empty() && modules != Words{"layer"}) return false;  // a full layer is one segment
  const Layout layout = layout_of(c);
  if (c[kWay] != 0 && layout.expert == 1) return false;
  if (c[kSlots] == 3 && (layout.sharing == Sharing::kUnitsSummedLast || layout.sharing == Sharing::kExpertUnits))
    return false;  // gradients are unsharded there
  return c[kSlots] == 0 || layout.gathers_units();
}
// Two instances of more than one rank, with a copy of the experts in each.
bool has_ranks(const Case& c) {
  const Layout layout = layout_of(c);
  return layout.sharing != Sharing::kUnitsOfTwoInstances || (layout.data == 4 && layout.expert < 4);
}

// One run for each model and layout, without options. Runs with another order of sums are separate: gradients summed in
// each microbatch or over instances, and other combine groups.
Case plain_of(const Case& c) {
  Case plain{};
  plain[kFamily] = c[kFamily];
  plain[kLayout] = c[kLayout];
  plain[kSchedule] = 1;
  const Layout layout = layout_of(c);
  plain[kWay] = c[kWay] == kGroups ? kGroups : 0;
  const bool in_instances = layout.sharing == Sharing::kUnitsOfTwoInstances;
  plain[kSharing] = in_instances ? c[kSharing] : layout.sums_each_microbatch() ? kUnitsAlone : 0;
  return plain;
}

const MoeTable& moe_table() {
  static const MoeTable table{
      .base = {.more = {"--bf16", "--check-hazards"}, .steps = 4, .eval_interval = 2},
      .columns = {column(moe_families(), [](Cell& cell, const Family& value) { cell.more = cell.more + value.flags; }),
                  module_column(kModuleSets), flag_column(kRecomputed), flag_column(kFusions),
                  sharing_column(kSharings), flag_column(kSlotCounts), flag_column(kWays), schedule_column(),
                  layout_column(kLayouts)},
      .is_legal = is_legal,
      .plain = plain_of};
  return table;
}

std::vector<Case> chosen_cases() {
  const MoeTable& table = moe_table();
  if (one_of(2) > 1) {
    std::vector<Case> cases = table.legal_cases();
    std::erase_if(cases, [](const Case& c) { return !has_ranks(c); });
    return pairwise<kNumFactors>(cases);
  }
  std::vector<Case> cases = table.legal_cases({{kSlots, 1}, {kWay, 1}, {kSchedule, 1}, {kLayout, 1}});
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Case& c = cases[i];
    c[kSchedule] = table.by_turns(i, kSchedule, 1);
    c[kLayout] = table.by_turns(i, kLayout, 7);
    if (!has_ranks(c)) c[kLayout] = 4;
    if (layout_of(c).expert > 1) c[kWay] = table.by_turns(i, kWay, 3);
    if (layout_of(c).gathers_units()) c[kSlots] = table.by_turns(i, kSlots, 5);
    if (!is_legal(c)) c[kSlots] = 0;
  }
  return cases;
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = chosen_cases();
  return cases;
}

// A model and the modules of its graphs.
class MoeMatrix : public testing::TestWithParam<std::tuple<int, int>> {};
std::string name_of(const testing::TestParamInfo<std::tuple<int, int>>& test) {
  const auto [family, modules] = test.param;
  std::string name = moe_families()[static_cast<std::size_t>(family)].name;
  for (const std::string& module : kModuleSets[static_cast<std::size_t>(modules)]) name += "_" + module;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Models, MoeMatrix,
                         testing::Combine(testing::Range(0, static_cast<int>(moe_families().size())),
                                          testing::Range(0, static_cast<int>(kModuleSets.size()))),
                         name_of);

TEST_P(MoeMatrix, ChangesNoBit) {
  const auto [family, modules] = GetParam();
  std::vector<Case> cases = all_cases();
  std::erase_if(cases, [&](const Case& c) { return c[kFamily] != family || c[kModules] != modules; });
  const auto check = [](const Case&, const Cell& cell, const RunResult& got, const RunResult& want) {
    ASSERT_EQ(got.balancing_losses.size(), want.balancing_losses.size());
    for (std::size_t i = 0; i < got.balancing_losses.size(); ++i)  // the sum over layers has any order
      EXPECT_NEAR(got.balancing_losses[i], want.balancing_losses[i], 1e-6);
    for (const RankActivity& rank : got.ranks) EXPECT_EQ(rank.units_gathered > 0, cell.layout.gathers_units());
  };
  moe_table().expect_no_bit_changed(cases, check);
}

TEST(MoeMatrixCases, HaveEachModelAndModules) {
  std::map<std::pair<int, int>, int> cases;
  int replayed = 0;
  for (const Case& c : all_cases()) {
    ++cases[{c[kFamily], c[kModules]}];
    replayed += c[kModules] == 0 ? 0 : 1;
  }
  EXPECT_EQ(cases.size(), moe_families().size() * kModuleSets.size());
  EXPECT_GE(all_cases().size(), 30u);
  EXPECT_GE(replayed, 25);
}

}  // namespace
}  // namespace megalith::test

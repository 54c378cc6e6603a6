// Experts with another sharding than dense units (--expert-data-parallel-sharding-strategy). Bits equal runs that add
// up in the same order, whatever units are gathered.
#include <gtest/gtest.h>

#include <map>

#include "apps/config/parallel_options.h"
#include "tests/support/tier.h"
#include "tests/unit/train/moe/moe_runs.h"

namespace megalith::test {
namespace {

Words sharding(const char* dense, const char* experts) {
  return {"--data-parallel-sharding-strategy", dense, "--expert-data-parallel-sharding-strategy", experts};
}
const Words kLast{"--fsdp-reduce-grads", "last"}, kInstances{"--num-distributed-optimizer-instances", "2"},
    kOuter{"--outer-dp-sharding-strategy", "optim"}, kOverlap{"--overlap-grad-reduce", "--overlap-param-gather"},
    kGraphs{"--cuda-graph-impl", "local", "--cuda-graph-modules", "layer"};
constexpr const char *kOptim = "optim", *kGrads = "optim_grads", *kParams = "optim_grads_params";

// Layouts in which experts have two copies, in an instance too.
const Layout kPlain{.data = 4, .expert = 2}, kStages{.pipeline = 2, .data = 4, .expert = 2},
    kTensor{.tensor = 2, .sequence = true, .data = 4, .expert = 2};

// Runs that add up gradients in the same order: once a step or in each microbatch, over all replicas or in instances
// first.
struct Pair {
  Words flags, same_as;
  std::vector<Layout> layouts = {kPlain, kStages};
};
// Only dense units are gathered, or only experts.
std::vector<Pair> pairs() {
  return {{sharding(kParams, kOptim) + kLast, {}},
          {sharding(kParams, kOptim) + kLast + kOverlap + kGraphs, {}},
          {sharding(kOptim, kParams) + kLast + kOverlap, {}},
          {sharding(kOptim, kParams) + kOverlap, sharding(kOptim, kGrads)},
          {sharding(kParams, kOptim) + kOverlap, sharding(kGrads, kOptim)},
          {sharding(kGrads, kParams), sharding(kGrads, kGrads)},
          {sharding(kOptim, kParams) + kLast + kInstances, sharding(kOptim, kOptim) + kInstances, {kTensor}},
          {sharding(kOptim, kParams) + kLast + kInstances + kOuter + kOverlap,
           sharding(kOptim, kOptim) + kInstances,
           {kTensor}},
          {sharding(kParams, kOptim) + kLast + kInstances + kOuter, sharding(kOptim, kOptim) + kInstances, {kTensor}},
          {sharding(kOptim, kParams) + kInstances + kOuter, sharding(kOptim, kGrads) + kInstances, {kTensor}}};
}

RunResult run_sharded(const Words& flags, const Layout& layout) {
  const auto check = [&](Rank& rank) {
    const ParallelOptions parallel = parse_flags(App::kTrain, tiny_flags() + flags).options.parallel;
    for (const ParameterUnit& unit : rank.model.gpt.parameters->units()) {
      const bool experts = unit.kind == UnitKind::kExperts;
      if (unit.name.find("layer") == std::string::npos) continue;
      const ShardingStrategy strategy = experts ? parallel.expert_sharding() : parallel.sharding();
      EXPECT_EQ(unit.resident_weights, strategy != ShardingStrategy::kOptimGradsParams) << unit.name;
    }
  };
  const auto finish = [](Trainer& trainer, int) {
    if (trainer.rank().graphs) {
      EXPECT_GT(trainer.rank().graphs->stats().replays, 0);
    }
  };
  const RunResult result = train({.flags = flags, .ranks = layout.ranks(), .customize = check, .finish = finish});
  EXPECT_TRUE(result.copies_agree);
  EXPECT_TRUE(result.memory_as_planned);
  EXPECT_EQ(result.hazards, 0);
  return result;
}

class MoeSharding : public MoeTest {};
INSTANTIATE_TEST_SUITE_P(Models, MoeSharding, testing::Values(0, 1), name_of_moe);

TEST_P(MoeSharding, OfExpertsAloneChangesNoBit) {
  const Words flags = model() + Words{"--bf16", "--hidden-dropout",  "0.1", "--check-hazards", "--train-iters",
                                      "3",      "--ddp-bucket-size", "1000"};
  const std::vector<Pair> all = pairs();
  std::map<Words, RunResult> wanted;
  int compared = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t l = 0; l < all[i].layouts.size(); ++l) {
      // In the quick tier one family has it in this layout, the other in the next.
      if ((static_cast<int>(i + l) + GetParam()) % one_of(2) != 0) continue;
      const Layout& layout = all[i].layouts[l];
      SCOPED_TRACE(layout.name() + testing::PrintToString(all[i].flags));
      const Words base = flags + layout.flags();
      const auto [want, is_new] = wanted.try_emplace(base + all[i].same_as);
      if (is_new) want->second = run_sharded(want->first, layout);
      const RunResult got = run_sharded(base + all[i].flags, layout);
      expect_same_run(got, want->second);
      for (const RankActivity& rank : got.ranks) EXPECT_GT(rank.units_gathered, 0);
      ++compared;
    }
  }
  EXPECT_GE(compared, 8);
}

}  // namespace
}  // namespace megalith::test

// FSDP by a user's hooks has the bits of the built-in one. Runs are eager and in graphs of stages, which are captured
// ahead, with experts over two ranks and offloaded activations. In the quick tier, each two values of two columns occur
// together once.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "tests/support/tier.h"
#include "tests/unit/train/own_sharding.h"

namespace megalith::test {
namespace {

constexpr int kShardedSteps = 3;
constexpr std::int64_t kShardedMicrobatches = 4;  // per replica

struct Own {
  RunResult run;
  std::int64_t gathers = 0, reductions = 0, calls_ahead = 0, graphs = 0, missing = 0, replays = 0, unit_actions = 0;
};

Own run_own(const Cell& cell, bool graphs) {
  Own own;
  std::mutex mutex;
  std::map<int, std::shared_ptr<ShardedUnits>> units;
  const auto customize = [&](Rank& rank) {
    const std::shared_ptr<ShardedUnits> of_rank = shard_by_hooks(rank, cell);
    const std::lock_guard lock(mutex);
    units[rank.mesh.world().rank()] = of_rank;
    rank.runner.hooks(0).add(HookPoint::kPreForward, [&](const HookContext& hook) {
      if (hook.phase != Phase::kCaptureAhead) return;
      const std::lock_guard count(mutex);
      ++own.calls_ahead;
    });
  };
  const auto finish = [&](Trainer& trainer, int rank) {
    const std::lock_guard lock(mutex);
    own.gathers += units.at(rank)->gathers();
    own.reductions += units.at(rank)->reductions();
    for (const Action& action : trainer.step().actions().train) own.unit_actions += is_of_unit(action.kind) ? 1 : 0;
    if (!trainer.rank().graphs) return;
    const GraphedRunner& of_rank = *trainer.rank().graphs;
    own.graphs += of_rank.stats().graphs;
    own.missing += of_rank.plan().graphs - of_rank.stats().graphs;
    own.replays +=
        of_rank.stats().replays - static_cast<std::int64_t>(of_rank.plan().runs.size()) * (kShardedSteps - 1);
  };
  own.run = train({.flags = graphs ? cell.graphs() : cell.eager(),
                   .ranks = cell.layout.ranks(),
                   .customize = customize,
                   .finish = finish});
  return own;
}

void expect_own(const Cell& cell, const Own& own, const RunResult& want) {
  expect_same_state(own.run, want);
  EXPECT_EQ(own.unit_actions, 0);
  EXPECT_GT(own.gathers, 0);
  EXPECT_EQ(own.reductions > 0, cell.layout.sharing == Sharing::kUnits);
  EXPECT_EQ(expect_moved(own.run, kShardedSteps * kShardedMicrobatches) > 0,
            std::ranges::count(cell.more, "--offload-modules") > 0);
}

TEST(MoeOwnSharding, HasTheBitsOfTheBuiltInOne) {
  std::map<Sharing, RunResult> built_in;  // key: sharding
  for (Cell cell : own_cells(kShardedSteps, one_of(2) > 1)) {
    cell.more = cell.more + Words{"--bf16", "--check-hazards"};
    SCOPED_TRACE(cell.name() + testing::PrintToString(cell.more));
    const auto [found, is_new] = built_in.try_emplace(cell.layout.sharing);
    if (is_new) {
      found->second = run_eagerly(cell);
      EXPECT_GT(found->second.ranks[0].units_gathered, 0);
      const Own eager = run_own(cell, false);
      expect_own(cell, eager, found->second);
      EXPECT_EQ(eager.calls_ahead, 0);
    }
    const Own graphs = run_own(cell, true);
    expect_own(cell, graphs, found->second);
    EXPECT_GT(graphs.graphs, 0);
    EXPECT_EQ(graphs.missing, 0);
    EXPECT_EQ(graphs.replays, 0) << "more or fewer than each run in all steps but the first";
    EXPECT_GT(graphs.calls_ahead, 0);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace megalith::test

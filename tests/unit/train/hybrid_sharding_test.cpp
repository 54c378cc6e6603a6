// Hybrid sharding (HSDP): instances of data-parallel ranks hold all shards each. The numbers
// of plain data parallelism to rounding, since gradients are summed in another order, with collectives within instances
// and between them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "core/ops/elementwise/elementwise.h"
#include "tests/support/matchers.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

const Words kSmallHybrid = {"--hidden-size", "16", "--seq-length",        "8", "--micro-batch-size", "1",
                            "--train-iters", "3",  "--global-batch-size", "8", "--hidden-dropout",   "0.1"};
const Words kOverlap = {"--overlap-grad-reduce", "--ddp-bucket-size", "1", "--overlap-param-gather"};

Words hybrid(int instances) {
  return {"--use-distributed-optimizer", "--num-distributed-optimizer-instances", std::to_string(instances)};
}

void expect_near(const RunResult& got, const RunResult& want) {
  expect_losses_near(got, want, 1e-6);
  expect_norms_near(got, want, 1e-5);
  for (const auto& [name, values] : want.gradients) {
    const std::vector<float>& others = got.gradients.at(name);
    float most = 0, difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(values[i]));
      difference = std::max(difference, std::abs(values[i] - others[i]));
    }
    EXPECT_LE(difference, 1e-4F * most + 1e-9F) << name;
  }
  EXPECT_TRUE(got.copies_agree) << "what several ranks hold must have the same bits";
  EXPECT_TRUE(got.memory_as_planned);
}

struct Grid {
  int instances, ranks;  // ranks of each
  Words layout = {};
  int other_ranks = 1;  // product of tensor and pipeline sizes
};

// Calls of a step: each unit is scattered and gathered within an instance and summed over the instances.
void expect_calls(const Grid& grid, const Words& overlap) {
  std::int64_t units = 0, padded = 0;
  const std::int64_t steps = 3, many = grid.ranks > 1 ? 1 : 0;
  const auto count = [&](Trainer& trainer, int) {
    units = padded = 0;
    for (const ParameterUnit& unit : trainer.rank().model.gpt.parameters->units()) {
      units += unit.numel > 0 ? 1 : 0;
      padded += unit.numel;
    }
  };
  std::mutex mutex;
  const auto check = [&](Trainer& trainer, int rank) {
    const std::lock_guard lock(mutex);
    count(trainer, rank);
    const RankGroups& groups = trainer.rank().groups;
    EXPECT_EQ(groups.shards().size(), grid.ranks);
    EXPECT_EQ(groups.shards().stats().collectives, many * 2 * steps * units);
    EXPECT_EQ(groups.instances()->stats().collectives, steps * units);
    EXPECT_EQ(groups.replicas.stats().collectives, 0);
    EXPECT_EQ(groups.shard_sums().stats().collectives, many * steps) << "squares are summed within an instance";
    EXPECT_EQ(groups.sums->stats().collectives, steps) << "and the loss over all";
    const CategoryBytes bytes = trainer.rank().memory.pool.allocated_by_category();
    EXPECT_EQ(static_cast<std::int64_t>(bytes[static_cast<std::size_t>(MemoryCategory::kOptimizer)]) * grid.ranks,
              8 * padded);
  };
  const Words flags = kSmallHybrid + grid.layout;
  const int ranks = grid.instances * grid.ranks * grid.other_ranks;
  const RunResult plain = train({.flags = flags, .ranks = ranks});
  expect_near(train({.flags = flags + hybrid(grid.instances) + overlap, .ranks = ranks, .finish = check}), plain);
}

TEST(HybridSharding, HasTheNumbersOfPlainDataParallelism) {
  for (const Grid& grid : {Grid{2, 2}, Grid{2, 4}, Grid{4, 2}, Grid{2, 1}}) {
    SCOPED_TRACE(testing::Message() << grid.instances << " instances of " << grid.ranks);
    expect_calls(grid, kOverlap);
  }
  expect_calls({2, 2}, {});
}

TEST(HybridSharding, WorksWithOtherParallelism) {
  const Words context = {"--context-parallel-size", "2"};
  for (const Words& layout : {tensor_ranks(2), stages(2), context}) {
    SCOPED_TRACE(testing::PrintToString(layout));
    const Words flags = kSmallHybrid + layout + kEvaluations;
    const RunResult plain = train({.flags = flags, .ranks = 8});
    const RunResult run = train({.flags = flags + hybrid(2) + kOverlap + Words{"--check-hazards"}, .ranks = 8});
    expect_near(run, plain);
    EXPECT_EQ(run.hazards, 0);
  }
}

// Each microbatch of a unit is scattered within an instance, and its shard summed over the instances once a step.
TEST(HybridSharding, OfWeightsAndGradientsSumsAShardOnce) {
  const Words flags = kSmallHybrid + Words{"--global-batch-size", "16", "--eval-interval", "2", "--eval-iters", "1"};
  for (const auto& [instances, ranks] : {std::pair{2, 4}, {2, 8}, {4, 8}}) {
    const RunResult plain = train({.flags = flags, .ranks = ranks});
    for (const char* const strategy : {"optim_grads", "optim_grads_params"}) {
      SCOPED_TRACE(testing::Message() << strategy << " in " << instances << " instances of " << ranks);
      const auto check = [](Trainer& trainer, int) {
        const Rank& rank = trainer.rank();
        std::int64_t all = 0, shards = 0;  // units, and those of them whose gradients are unsharded only briefly
        for (const ParameterUnit& unit : rank.model.gpt.parameters->units()) {
          all += unit.numel > 0 ? 1 : 0;
          shards += unit.resident_gradients ? 0 : 1;
        }
        EXPECT_EQ(shards, 2) << "layers";
        EXPECT_EQ(rank.groups.instances()->stats().collectives, 3 * all);
        EXPECT_EQ(rank.units.sharded->reductions(), shards * 3 * rank.config.microbatches);
      };
      const Words hybrids = hybrid(instances) + Words{"--data-parallel-sharding-strategy", strategy, "--check-hazards"};
      const RunResult run = train({.flags = flags + hybrids + kOverlap, .ranks = ranks, .finish = check});
      expect_near(run, plain);
      EXPECT_EQ(run.hazards, 0);
    }
  }
}

const Words kOuter = {"--outer-dp-sharding-strategy", "optim"};
const Words kInstanceShards = strategy("optim_grads_params");

Words instances(int count) { return {"--num-distributed-optimizer-instances", std::to_string(count)}; }

std::size_t bytes_of(Trainer& trainer, MemoryCategory category) {
  return trainer.rank().memory.pool.allocated_by_category()[static_cast<std::size_t>(category)];
}

// Instances that shard the update of their shards: the same sums in the same order.
TEST(HybridSharding, WithASharedOptimizerHasTheSameBits) {
  const Words ends = {"--untie-embeddings-and-output-weights", "--fsdp-embedding-and-head", "sharded", "--bf16"};
  struct Case {
    int instances, ranks;  // ranks of all
    Words flags;
  };
  for (const Case& one : {Case{2, 4, kOverlap}, Case{2, 4, ends}, Case{4, 8, ends}, Case{2, 2, kOverlap},
                          Case{2, 8, tensor_ranks(2) + Words{"--sequence-parallel"}}}) {
    SCOPED_TRACE(testing::Message() << one.instances << " instances of " << one.ranks);
    const Words flags = kSmallHybrid + kInstanceShards + instances(one.instances) + one.flags + kEvaluations;
    const RunResult want = train({.flags = flags, .ranks = one.ranks});
    const auto check = [&](Trainer& trainer, int) {
      const Rank& rank = trainer.rank();
      std::int64_t units = 0, owned = 0;
      for (const ParameterUnit& unit : rank.model.gpt.parameters->units()) {
        units += unit.numel > 0 ? 1 : 0;
        owned += unit.numel / rank.groups.replicas.size();
      }
      EXPECT_EQ(static_cast<std::int64_t>(bytes_of(trainer, MemoryCategory::kOptimizer)), 8 * owned);
      EXPECT_EQ(rank.groups.instances()->stats().collectives, 2 * 3 * units) << "scattered and gathered";
    };
    const RunResult run =
        train({.flags = flags + kOuter + Words{"--check-hazards"}, .ranks = one.ranks, .finish = check});
    expect_same_state(run, want);
    EXPECT_TRUE(run.whole_state == want.whole_state);
    EXPECT_TRUE(run.copies_agree);
    EXPECT_TRUE(run.memory_as_planned);
    EXPECT_EQ(run.hazards, 0);
  }
}

// One element of a shard, which one other rank of the four holds too.
TEST(HybridSharding, TheComparisonOfReplicasFindsAShardThatDiffers) {
  const std::map<int, std::string> reported =
      warned_replicas(kSmallHybrid, {"hybrid", hybrid(2), 4}, [](Rank& rank, int index) {
        const Tensor moment = rank.optimizer.adamw.units()[1].exp_avg_sq;
        if (index == 3) launch(rank.streams.compute, Fill{.x = moment.slice(0, 0, 1), .value = 3});
      });
  EXPECT_THAT(reported, ElementsAre(testing::Key(1), testing::Key(3)));
  for (const auto& [rank, message] : reported) {
    EXPECT_THAT(message, HasSubstr("exp_avg_sq of a shard of "));
    EXPECT_THAT(message, HasSubstr("on rank 3"));
  }
}

}  // namespace
}  // namespace megalith::test

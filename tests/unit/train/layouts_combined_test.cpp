// Combined layouts: all schedules give the same bits without a hazard, checkpoints go from any to any other, and what
// goes wrong in a group that rank 0 is not in is told.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "core/ops/elementwise/elementwise.h"
#include "parallel/comm/on_all_ranks.h"
#include "tests/support/tier.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

TEST(CombinedLayouts, EverySchedulesBitsAreTheSameWithoutAHazard) {
  int number = 0;
  for (Layout layout :
       {Layout{.tensor = 2, .sequence = true, .pipeline = 2, .data = 2, .sharing = Sharing::kOptimizer},
        Layout{.tensor = 4, .pipeline = 2}, Layout{.tensor = 2, .sequence = true, .overlap = true, .pipeline = 4},
        Layout{.tensor = 2, .sequence = true, .overlap = true, .pipeline = 2, .context = 2},
        Layout{.pipeline = 2, .sharing = Sharing::kOptimizer, .context = 2, .communication = "a2a"}}) {
    const Words flags = sizes_for(layout) + families()[1].flags +
                        Words{"--hidden-dropout", "0.1", "--train-iters", "2", "--check-hazards",
                              "--eval-interval",  "2",   "--eval-iters",  "1"};
    RunResult first;
    ++number;  // in the quick tier half of the schedules, and the others in the next layout
    for (const std::string& name : schedules()) {
      if (number++ % one_of(2) != 0) continue;
      layout.schedule = name;
      SCOPED_TRACE(layout.name());
      const RunResult run = train(flags, layout);
      EXPECT_EQ(run.hazards, 0);
      EXPECT_EQ(run.code, ExitCode::kOk);
      EXPECT_TRUE(run.memory_as_planned);
      EXPECT_TRUE(run.copies_agree);
      EXPECT_GT(run.event_waits, 100);
      for (const RankActivity& did : run.ranks) {
        EXPECT_GT(did.transfer.sent, 0);
        EXPECT_EQ(did.tensor_calls > 0, layout.tensor > 1);
        EXPECT_EQ(did.context_calls > 0, layout.context > 1);
        EXPECT_EQ(did.buckets_reduced > 0, layout.data * layout.context > 1);
      }
      if (first.losses.empty()) first = run;
      expect_same_run(run, first);
      EXPECT_TRUE(run.whole_state == first.whole_state);
    }
  }
}

// A call that rank 3 alone announces, in a group of its own and rank 1's: all ranks end, and rank 1 says why.
TEST(CombinedLayouts, ACallThatDiffersInAnyGroupEndsAllRanks) {
  const Layout layout{.tensor = 2, .data = 2};
  try {
    train({.flags = layout.flags(), .ranks = 4, .prepare = [](Trainer& trainer, int rank) {
             if (rank == 3) groups_of_steps(trainer.rank())[0]->recorder().announce({.kind = "all_reduce"});
           }});
    ADD_FAILURE() << "the run went on";
  } catch (const EveryRankFailed& failed) {
    EXPECT_EQ(failed.rank(), 1);
    EXPECT_EQ(failed.code(), ExitCode::kCommunication);
    EXPECT_NE(std::string(failed.what()).find("on group dp: expected the same call"), std::string::npos);
  }
}

// Rank 6 of tp 2 x dp 2 x pp 2 is rank 1 of its data-parallel group.
TEST(CombinedLayouts, AFlippedBitIsToldWithTheRankOfTheWorld) {
  const Layout layout{.tensor = 2, .pipeline = 2, .data = 2};
  std::mutex mutex;
  std::map<int, std::string> told;
  train({.flags = layout.flags(), .ranks = 8, .prepare = [&](Trainer& trainer, int rank) {
           EXPECT_FALSE(replica_difference(trainer.rank()));
           const Tensor weights = trainer.rank().model.gpt.parameters->units().front().weights;
           if (rank == 6) *weights.as<float>() += 1;
           const auto difference = replica_difference(trainer.rank());
           if (rank == 6) *weights.as<float>() -= 1;
           const std::lock_guard lock(mutex);
           if (difference) told[rank] = difference->message;
         }});
  ASSERT_EQ(told.size(), 2u);  // its own group
  for (const int rank : {4, 6}) {
    EXPECT_NE(told[rank].find("on the 2 ranks of group dp"), std::string::npos) << told[rank];
    EXPECT_NE(told[rank].find("on rank 4"), std::string::npos) << told[rank];
    EXPECT_NE(told[rank].find("on rank 6"), std::string::npos) << told[rank];
  }
}

// The weights of rank 3, of the second stage, become NaN: it is named, though others see NaN first by the clock.
TEST(CombinedLayouts, TheFirstNanIsNamedWithItsRank) {
  const Layout layout{.tensor = 2, .sequence = true, .pipeline = 2};
  const auto poison = [](Trainer& trainer, int rank) {
    if (rank != 3) return;
    Rank& own = trainer.rank();
    for (const ParameterUnit& unit : own.model.gpt.parameters->units())
      launch(own.streams.compute, Fill{.x = unit.weights.slice(0, 0, 1), .value = std::nanf("")});
    own.streams.compute.synchronize();
  };
  testing::internal::CaptureStderr();
  const RunResult run = train({.flags = layout.flags() + Words{"--num-layers", "4", "--max-skipped-steps", "6"},
                               .ranks = 4,
                               .prepare = poison});
  EXPECT_EQ(run.skipped_steps, 6);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("the first value that is not finite: rank 3, layer 2 attention, forward, microbatch 0"),
            std::string::npos)
      << text;
}

struct Saves {
  std::string name;
  Words flags;
  std::vector<std::size_t> distances;  // from the layout that saved to those that load
  double tolerance = 0;
};

class CombinedCheckpoints : public testing::TestWithParam<Saves> {};
// Fourteen pairs in fp32, seven more with main parameters and a padded vocabulary, of which ranks hold other numbers of
// rows.
INSTANTIATE_TEST_SUITE_P(Models, CombinedCheckpoints,
                         testing::Values(Saves{"gpt2", {}, {1, 2}, 1e-5},
                                         Saves{"qwen2InBf16",
                                               families()[2].flags +
                                                   Words{"--bf16", "--make-vocab-size-divisible-by", "100"},
                                               {3},
                                               1e-3}),
                         [](const auto& saves) { return saves.param.name; });

TEST_P(CombinedCheckpoints, GoFromAnyLayoutToAnyOther) {
  const std::vector<Layout> layouts = {
      {},
      {.tensor = 2, .sequence = true, .pipeline = 2, .data = 2, .sharing = Sharing::kOptimizer},
      {.tensor = 2, .pipeline = 2, .schedule = "interleaved"},
      {.tensor = 4, .sequence = true, .pipeline = 2, .schedule = "zb-v"},
      {.pipeline = 4, .data = 2, .schedule = "zb-h1", .sharing = Sharing::kOverlapped},
      {.tensor = 2, .sequence = true, .pipeline = 4, .schedule = "interleaved"},
      {.tensor = 2, .sequence = true, .data = 2, .context = 2},
  };
  const TestFolder scratch;
  const Words flags =
      GetParam().flags + Words{"--num-layers",       "8", "--hidden-size",       "16", "--seq-length",     "8",
                               "--micro-batch-size", "1", "--global-batch-size", "4",  "--hidden-dropout", "0.1",
                               "--train-iters",      "3", "--lr-warmup-iters",   "1"};
  std::vector<RunResult> unbroken;
  for (const Layout& layout : layouts) unbroken.push_back(train(flags, layout));
  for (std::size_t from = 0; from < layouts.size(); from += static_cast<std::size_t>(one_of(4))) {
    const std::string folder = scratch.path(std::to_string(from));
    const RunResult saved = train(flags + Words{"--exit-interval", "2", "--save", folder}, layouts[from]);
    ASSERT_EQ(saved.losses.size(), 2u);
    std::vector<std::size_t> targets = {from};
    for (const std::size_t distance : GetParam().distances) targets.push_back((from + distance) % layouts.size());
    for (const std::size_t to : targets) {
      SCOPED_TRACE(layouts[from].name() + " to " + layouts[to].name());
      Tensors weights, optimizer;
      std::mutex mutex;
      const RunResult rest = train({.flags = flags + layouts[to].flags() + Words{"--load", folder},
                                    .ranks = layouts[to].ranks(),
                                    .prepare = [&](Trainer& trainer, int) {
                                      const std::lock_guard lock(mutex);
                                      put_slices(trainer.rank(), &Parameter::weight, weights);
                                      put_state(trainer.rank(), optimizer);
                                    }});
      EXPECT_TRUE(weights == saved.weights);
      EXPECT_TRUE(optimizer == saved.whole_state);
      ASSERT_EQ(rest.losses.size(), 1u);
      EXPECT_NEAR(rest.loss_values[0] / unbroken[from].loss_values[2], 1, GetParam().tolerance);
      EXPECT_TRUE(rest.copies_agree);
      if (to != from) continue;
      EXPECT_EQ(rest.losses[0], unbroken[from].losses[2]);
      EXPECT_EQ(rest.grad_norms[0], unbroken[from].grad_norms[2]);
      EXPECT_TRUE(rest.weights == unbroken[from].weights);
      EXPECT_TRUE(rest.whole_state == unbroken[from].whole_state);
    }
  }
}

}  // namespace
}  // namespace megalith::test

// Combined layouts beyond what every layout promises (layout_claims_test.cpp): failures in a group that lacks rank 0
// end the run with their message.
#include <gtest/gtest.h>

#include <map>

#include "parallel/comm/on_all_ranks.h"
#include "tests/unit/train/layouts.h"

namespace megalith::test {
namespace {

// Rank 3 alone announces a call in its group with rank 1: all ranks end, and rank 1 reports the reason.
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
TEST(CombinedLayouts, AFlippedBitIsReportedWithTheRankOfTheWorld) {
  const Layout layout{.tensor = 2, .pipeline = 2, .data = 2};
  std::map<int, std::string> reported = warned_replicas({}, way_of(layout), [](Rank& rank, int index) {
    if (index == 6) *rank.model.gpt.parameters->units().front().weights.as<float>() += 1;
  });
  ASSERT_EQ(reported.size(), 2u);  // its own group
  for (const int rank : {4, 6}) {
    EXPECT_NE(reported[rank].find("on the 2 ranks of group dp"), std::string::npos) << reported[rank];
    EXPECT_NE(reported[rank].find("on rank 4"), std::string::npos) << reported[rank];
    EXPECT_NE(reported[rank].find("on rank 6"), std::string::npos) << reported[rank];
  }
}

// The weights of rank 3, of the second stage, become NaN: it is named, though others see NaN first by the clock.
TEST(CombinedLayouts, TheFirstNanIsNamedWithItsRank) {
  const Layout layout{.tensor = 2, .sequence = true, .pipeline = 2};
  testing::internal::CaptureStderr();
  const RunResult run = train({.flags = layout.flags() + Words{"--num-layers", "4", "--max-skipped-steps", "6"},
                               .ranks = 4,
                               .prepare = poison_weights(3)});
  EXPECT_EQ(run.skipped_steps, 6);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("the first value that is not finite: rank 3, layer 2 attention, forward, microbatch 0"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace megalith::test

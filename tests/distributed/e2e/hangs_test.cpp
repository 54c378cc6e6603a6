// Ranks that are stopped while they train: who waits for whom is said in time, every rank's last calls are kept, and no
// process is left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>

#include "tests/distributed/e2e/program.h"

namespace megalith {
namespace {

using test::Folder;
using test::Outcome;
using test::Words;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using test::operator+;

#ifdef MEGALITH_EXIT_CODES_SURVIVE
TEST(Hangs, AStoppedRankIsNamedAndNoProcessIsLeft) {
  const Folder folder;
  const Words flags = test::tiny_mock() + Words{"--train-iters",  "1000000", "--global-batch-size", "12",
                                                "--log-interval", "1000000", "--comm-timeout",      "1.5"};
  test::Process run(test::program_on(3, "train", flags), folder);
  ASSERT_TRUE(run.wait_for_output("iteration 1/ "));
  const std::vector<pid_t> ranks = run.ranks();
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks[1], SIGSTOP);
  const auto stopped = std::chrono::steady_clock::now();
  EXPECT_TRUE(run.wait_for_output(": error: "));
  EXPECT_LT(std::chrono::steady_clock::now() - stopped, std::chrono::milliseconds(1500 + 2000));
  const Outcome outcome = run.finish();
  EXPECT_EQ(outcome.code, 7);
  EXPECT_LT(std::chrono::steady_clock::now() - stopped, std::chrono::milliseconds(1500 + 2000 + 10000));
  EXPECT_THAT(outcome.errors(), ElementsAre(::testing::AllOf(
                                    HasSubstr("train: error: [rank 0/3] "), HasSubstr(" on group "), HasSubstr(" #"),
                                    HasSubstr("expected its ranks 0, 1, 2 within 1.5 s (--comm-timeout), got "),
                                    HasSubstr("; rank 1 gave no answer, so the process is stopped, lost or starved"),
                                    HasSubstr("; the last calls of each rank: comm-dump"))));
  for (const pid_t pid : ranks) EXPECT_NE(kill(pid, 0), 0) << "a process is left";
  for (const char* name : {"comm-dump/comm_rank_0000.json", "comm-dump/comm_rank_0002.json"}) {
    EXPECT_THAT(folder.read(name), HasSubstr("\"kind\": \"all_reduce\", \"tensor\": \"gradients of bucket 0\""))
        << name;
    EXPECT_THAT(folder.read(name), HasSubstr("\"ended_ms\": null"));
  }
}
#endif

}  // namespace
}  // namespace megalith

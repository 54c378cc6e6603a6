// Tensor-parallel runs under mpirun: the losses of one rank, the planned memory, and checkpoints that any layout and
// every program reads.
#include <gtest/gtest.h>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

TEST(TensorParallelRuns, TrainTheModelOfOneRankAndShareItsCheckpoints) {
  const Folder folder;
  folder.make_text();
  const Words flags = tiny() + Words{"--data-path", "text", "--hidden-dropout", "0.1"};
  const Words split = {"--tensor-model-parallel-size", "2", "--sequence-parallel", "--check-hazards"};
  const Outcome one = run_ok(program("train", flags + Words{"--metrics-jsonl", "one.jsonl"}), folder);
  const Words half = {"--exit-interval", "3", "--save", "kept", "--metrics-jsonl", "two.jsonl"};
  const Outcome two = run(program_on(2, "train", flags + split + half), folder);
  ASSERT_NE(two.code, 0);  // stopped on request; not every mpirun passes 75 on
  EXPECT_THAT(two.err + two.out, HasSubstr("stopped on request after step 3"));
  const Outcome rest =
      run_ok(program("train", flags + Words{"--load", "kept", "--metrics-jsonl", "rest.jsonl"}), folder);
  std::vector<double> got = losses_of(folder.read_lines("two.jsonl"));
  const std::vector<double> want = losses_of(folder.read_lines("one.jsonl")),
                            last = losses_of(folder.read_lines("rest.jsonl"));
  got.insert(got.end(), last.begin(), last.end());
  ASSERT_EQ(want.size(), 6u);
  ASSERT_EQ(got.size(), 6u);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-5) << "step " << i + 1;

  EXPECT_EQ(run(program("generate", {"--load", "kept", "--prompt", "It", "--max-new-tokens", "3"}), folder).code, 0);
  EXPECT_EQ(run(program("convert", {"--from", "native", "--to", "hf", "--load", "kept", "--save", "hf"}), folder).code,
            0);
}

TEST(TensorParallelRuns, OfTooFewRanksAreRefusedBeforeAnythingIsRead) {
  const Folder folder;
  const Outcome outcome =
      run(program_on(2, "train", tiny() + Words{"--data-path", "none", "--tensor-model-parallel-size", "4"}), folder);
  EXPECT_NE(outcome.code, 0);
  EXPECT_THAT(outcome.errors(),
              ::testing::ElementsAre(HasSubstr(
                  "--tensor-model-parallel-size 4: expected a number of ranks that is a multiple of 4, got 2; start 4 "
                  "or 8 ranks, or use --tensor-model-parallel-size 1 or 2")));
}

}  // namespace
}  // namespace megalith::test

// Pipeline parallelism under mpirun: two stages train the model of one rank, save their state, and resume from it.
#include <gtest/gtest.h>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

const Words kTwoStages = {"--pipeline-model-parallel-size", "2", "--hidden-dropout", "0.1"};

TEST(PipelineRuns, TwoStagesTrainTheModelOfOneAndItGenerates) {
  const Folder folder;
  folder.make_text();
  const Words flags = tiny() + Words{"--data-path", "text", "--hidden-dropout", "0.1"};
  ASSERT_EQ(run(program("train", flags + Words{"--metrics-jsonl", "one.jsonl"}), folder).code, 0);
  const Outcome two = run_ok(program_on(2, "train",
                                        flags + kTwoStages +
                                            Words{"--pipeline-schedule", "zb-h1", "--metrics-jsonl", "two.jsonl",
                                                  "--save", "kept", "--save-interval", "3", "--trace", "trace.json",
                                                  "--profile-step-start", "2", "--profile-step-end", "3"}),
                             folder);
  const std::vector<double> one = losses_of(folder.read_lines("one.jsonl"));
  const std::vector<double> pipelined = losses_of(folder.read_lines("two.jsonl"));
  ASSERT_EQ(one.size(), 6u);
  ASSERT_EQ(pipelined.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(pipelined[i] / one[i], 1, 1e-5) << "step " << i + 1;
  const std::string trace = folder.read("trace.json");
  EXPECT_THAT(trace, HasSubstr("send chunk 0 microbatch 3 output to stage 1"));
  EXPECT_THAT(trace, HasSubstr("send chunk 0 microbatch 3 gradient to stage 0"));

  const Words resume = flags + kTwoStages + Words{"--load", "kept", "--ckpt-step", "3", "--metrics-jsonl"};
  ASSERT_EQ(run(program_on(2, "train", resume + Words{"rest.jsonl"}), folder).code, 0);
  const Words whole = steps_of(folder.read_lines("two.jsonl"));
  EXPECT_EQ(steps_of(folder.read_lines("rest.jsonl")), Words(whole.begin() + 3, whole.end()));

  const Outcome text =
      run_ok(program("generate", {"--load", "kept", "--prompt", "It is", "--max-new-tokens", "8"}), folder);
  EXPECT_THAT(text.out, HasSubstr("It is"));
  EXPECT_GT(text.out.size(), 8u);
}

TEST(PipelineRuns, PlanShowsEachStage) {
  const Folder folder;
  const Outcome plan =
      run_ok(program("plan", Words{"--num-layers", "4", "--hidden-size", "32", "--num-attention-heads", "4",
                                   "--seq-length", "16", "--global-batch-size", "16", "--world-size", "4",
                                   "--pipeline-model-parallel-size", "2", "--pipeline-schedule", "zb-v"}),
             folder);
  EXPECT_THAT(plan.out, HasSubstr("(dp 2 x pp 2)"));
  EXPECT_THAT(plan.out, HasSubstr("stage 0    ranks     0 to 1     embedding, layer 0 | layer 3, loss"));
  EXPECT_THAT(plan.out, HasSubstr("stage 1    ranks     2 to 3     layer 1 | layer 2"));
  EXPECT_THAT(plan.out, HasSubstr("memory per rank of stage 1"));
}

#ifdef MEGALITH_EXIT_CODES_SURVIVE
TEST(PipelineRuns, LayersThatDoNotDivideAreRefusedOnce) {
  const Folder folder;
  const Outcome run = test::run(program_on(2, "train", tiny_mock() + kTwoStages + Words{"--num-layers", "3"}), folder);
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.errors(),
              ::testing::ElementsAre(
                  HasSubstr("--num-layers: expected a multiple of 2 (--pipeline-model-parallel-size 2), got 3; 2 or "
                            "4 would fit; or give --pipeline-model-parallel-layout")));
}
#endif

}  // namespace
}  // namespace megalith::test

// A run whose batch grows, as its user sees it: killed, resumed, planned.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <regex>
#include <string>
#include <vector>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

// Steps 1 to 3 have 4 samples, 4 and 5 have 8, 6 and 7 have 12.
Words ramp() {
  return words(
      "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 2 "
      "--global-batch-size 12 --rampup-batch-size 4 4 24");
}

Words run_of_53() {
  return tiny() + ramp() +
         words(
             "--train-iters 0 --train-samples 53 --data-path text --hidden-dropout 0.1 --lr-warmup-samples 8 "
             "--eval-interval 2 --eval-iters 1");
}

TEST(Ramp, KilledInEachStageAndResumed) {
  const Folder folder;
  folder.make_text();
  const Outcome whole =
      run_ok(program_on(2, "train", run_of_53() + Words{"--metrics-jsonl", "whole.jsonl", "--save", "whole"}), folder);
  const std::string log = whole.out + whole.err;
  EXPECT_THAT(log, AllOf(HasSubstr("step 1: batch size 4 from here on (--rampup-batch-size): 1 microbatch per step"),
                         HasSubstr("step 4: batch size 8 from here on (--rampup-batch-size): 2 microbatches per step"),
                         HasSubstr("step 6: batch size 12 from here on (--rampup-batch-size): 3 microbatches per step"),
                         HasSubstr(" step 7/7  loss "),
                         HasSubstr("1 of --train-samples 53 left over: the next step would need 12\n")));
  std::vector<std::string> batches;
  for (const std::string& line : folder.read_lines("whole.jsonl"))
    batches.push_back(number_after(line, "\"global_batch_size\": "));
  EXPECT_THAT(batches, ElementsAre("4", "4", "4", "8", "8", "12", "12"));

  const Words parts = run_of_53() + words("--metrics-jsonl parts.jsonl --save parts --load parts --save-interval 1");
  for (int kill = 0; kill < 3; ++kill) {  // ahead of steps 3, 5 and 7
    const Outcome killed =
        run(program_on(2, "train", parts + words("--allow-faults --fault step.begin:3:kill")), folder);
    EXPECT_EQ(killed.code, 128 + SIGKILL) << killed.err;
  }
  ASSERT_EQ(train_on_two(folder, parts), 0);
  EXPECT_EQ(steps_of(folder.read_lines("parts.jsonl")), steps_of(folder.read_lines("whole.jsonl")));
  expect_same_tensors(folder, "parts", "whole", 7);
}

// plan shows the largest stage, whose memory the run allocates at the start.
TEST(Ramp, PlanShowsTheMemoryOfTheLargestStage) {
  const Folder folder;
  const Words layout = {"--pipeline-model-parallel-size", "2"};
  const Outcome plan = run_ok(program("plan", ramp() + layout + Words{"--world-size", "2"}), folder);
  EXPECT_THAT(plan.out, HasSubstr("  batch size ramp from                        4 by 4 over 24 samples"));
  EXPECT_THAT(plan.out, HasSubstr("12 = 1 data-parallel rank x 6 microbatches x 2\n"));
  const Outcome run =
      run_ok(program_on(2, "train",
                        tiny_mock() + ramp() + layout +
                            words("--train-iters 0 --train-samples 12 --eval-interval 1 --eval-iters 1")),
             folder);
  const std::string total = number_after(plan.out, "evaluation step +[0-9.]+ MiB\n +total +");
  EXPECT_EQ(number_after(run.out + run.err, "peak: "), total) << run.out;
  EXPECT_EQ(number_after(run.out + run.err, "peak: [0-9.]+, planned "), total) << run.out;
}

// A change of batch in the middle moves neither the end nor the rate.
TEST(Ramp, ARunBySamplesEndsAfterThemWhateverItsBatches) {
  const Folder folder;
  folder.make_text();
  const Words run =
      tiny() + words(
                   "--micro-batch-size 1 --train-iters 0 --train-samples 80 --data-path text --lr-warmup-samples 9 "
                   "--lr-decay-style cosine --save kept --load kept --metrics-jsonl m.jsonl");
  const auto train = [&](const Words& more) { return test::run(program("train", run + more), folder); };
  EXPECT_EQ(train(words("--global-batch-size 4 --exit-interval 5")).code, 75);
  EXPECT_EQ(train(words("--global-batch-size 10 --exit-interval 9")).code, 75);
  const Outcome last = train(words("--global-batch-size 2 --log-format megatron"));
  EXPECT_EQ(last.code, 0) << last.err;
  EXPECT_THAT(last.out, HasSubstr("iteration 19/ 19 | consumed samples: 80 |"));
  const Words lines = folder.read_lines("m.jsonl");
  ASSERT_EQ(lines.size(), 5U + 4 + 10);
  const std::vector<int> before{0, 4, 8, 12, 16, 20, 30, 40, 50, 60, 62, 64, 66, 68, 70, 72, 74, 76, 78};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const double samples = before[i];
    const double rate = samples <= 9 ? 1e-3 * samples / 9 : 5e-4 * (std::cos(std::acos(-1.0) * (samples - 9) / 71) + 1);
    std::smatch match;
    ASSERT_TRUE(std::regex_search(lines[i], match, std::regex("\"learning_rate\": ([^,]+),")));
    EXPECT_NEAR(std::stod(match[1].str()), rate, 1e-12) << i;
  }
  const Outcome again = train(words("--global-batch-size 2"));
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.out + again.err,
              HasSubstr("nothing to do: after 80 of --train-samples 80 less than a batch of 2 is left"));
}

}  // namespace
}  // namespace megalith::test

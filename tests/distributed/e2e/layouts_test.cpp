// Tensor, pipeline and data parallelism combined, under mpirun.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"

namespace megalith::test {
namespace {

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-5) << "step " << i + 1;
}

const Words kTwoByTwo = {"--tensor-model-parallel-size", "2", "--sequence-parallel", "--pipeline-model-parallel-size",
                         "2"};

// Four ranks save; eight go on, with two replicas and another schedule.
TEST(LayoutRuns, FourRanksTrainTheModelOfOneAndEightGoOn) {
  const Folder folder;
  folder.make_text();
  const Words flags = tiny() + Words{"--num-layers",  "4", "--micro-batch-size", "1",    "--global-batch-size", "4",
                                     "--train-iters", "3", "--data-path",        "text", "--hidden-dropout",    "0.1"};
  const Outcome one = run_ok(program("train", flags + Words{"--metrics-jsonl", "one.jsonl"}), folder);
  const Outcome four = run_ok(
      program_on(4, "train",
                 flags + kTwoByTwo +
                     Words{"--check-hazards", "--save", "kept", "--save-interval", "2", "--metrics-jsonl", "four.jsonl",
                           "--trace", "trace.json", "--profile-step-start", "2", "--profile-step-end", "3"}),
      folder);
  const Outcome eight =
      run_ok(program_on(8, "train",
                        flags + kTwoByTwo +
                            Words{"--pipeline-schedule", "zb-h1", "--check-weight-hash-interval", "1", "--load", "kept",
                                  "--ckpt-step", "2", "--metrics-jsonl", "eight.jsonl"}),
             folder);
  const std::vector<double> want = losses_of(folder.read_lines("one.jsonl"));
  ASSERT_EQ(want.size(), 3u);
  expect_near(losses_of(folder.read_lines("four.jsonl")), want);
  expect_near(losses_of(folder.read_lines("eight.jsonl")), {want.back()});
  const std::string trace = folder.read("trace.json");
  EXPECT_THAT(trace, HasSubstr("send chunk 0 microbatch 3 output to stage 1"));
  EXPECT_THAT(trace, HasSubstr("reduce_scatter"));

  const Outcome text =
      run_ok(program("generate", {"--load", "kept", "--prompt", "It is", "--max-new-tokens", "4"}), folder);
}

// Output of a run of several ranks: lines of its metrics, and its state as one rank saves it a step later.
struct Written {
  Words steps;
  std::string tensors;
};

Written written_by(int ranks, const Words& flags, const Words& way) {
  const Folder folder;
  const Words saves = {"--save", "kept"}, six = {"--train-iters", "6", "--metrics-jsonl", "metrics.jsonl"};
  const Outcome run = run_ok(program_on(ranks, "train", flags + way + saves + six), folder);
  const Words seventh = {"--load", "kept", "--save", "whole", "--train-iters", "7"};
  const Outcome one = run_ok(program("train", flags + seventh), folder);
  return {.steps = steps_of(folder.read_lines("metrics.jsonl")),
          .tensors = folder.read("whole/step_0000007/rank_0000_of_0001.safetensors")};
}

// Sums by MPI's messages are added in MPI's order, however the state is sharded. A step's microbatches must be added up
// first.
class StrategiesOfRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(LayoutRuns, StrategiesOfRanks, testing::Values(2, 4, 8),
                         [](const auto& ranks) { return "dp" + std::to_string(ranks.param); });

TEST_P(StrategiesOfRanks, HaveTheSameBitsInHex) {
  const int ranks = GetParam();
  if (ranks != 4 && one_of(2) > 1) GTEST_SKIP() << "in the full tier";
  const Words shape = tiny_mock() + words(
                                        "--micro-batch-size 1 --global-batch-size 16 --clip-grad 0.1 "
                                        "--hidden-dropout 0.1 --untie-embeddings-and-output-weights");
  const Words flag = {"--data-parallel-sharding-strategy"}, all = {"optim_grads_params"};
  for (const Words& numbers : {Words{}, Words{"--bf16", "--main-grads-dtype", "bf16"}}) {
    const Words flags = shape + numbers;
    const Written want = written_by(ranks, flags, flag + Words{"no_shard"});
    ASSERT_EQ(want.steps.size(), 6u);
    ASSERT_FALSE(want.tensors.empty());
    for (const Words& way : {Words{"optim"}, Words{"optim", "--overlap-grad-reduce", "--overlap-param-gather"},
                             all + Words{"--fsdp-reduce-grads", "last"}}) {
      SCOPED_TRACE(testing::PrintToString(way + numbers));
      const Written got = written_by(ranks, flags, flag + way);
      EXPECT_EQ(got.steps, want.steps);
      EXPECT_TRUE(got.tensors == want.tensors);
    }
    // Sums in each microbatch have other bits, though losses and norms may not show it, and all such runs agree.
    const Written each = written_by(ranks, flags, flag + all),
                  gradients = written_by(ranks, flags, flag + Words{"optim_grads"});
    EXPECT_FALSE(each.tensors == want.tensors);
    EXPECT_EQ(gradients.steps, each.steps);
    EXPECT_TRUE(gradients.tensors == each.tensors);
  }
}

// Limits a process to `kib` KiB of private memory in addition to that of CUDA's libraries (13.0, cuDNN 9.19). The state
// of the model is 780 MiB, its weights 193.
Words limited(int kib, const Words& command) {
  constexpr int kLibraries = MEGALITH_CUDA ? 192'000 : 0;
  return Words{"/bin/sh", "-c", "ulimit -d $0; exec \"$@\"", std::to_string(kib + kLibraries)} + command;
}

TEST(LayoutRuns, AModelThatFitsNoRankIsTrainedAndSampledByFour) {
  if (one_of(2) > 1) GTEST_SKIP() << "in the full tier";
  const int training = 700'000, sampling = 190'000;
  const Folder folder;
  folder.make_text();
  const Words shape = words(
      "--num-layers 16 --hidden-size 512 --num-attention-heads 8 --seq-length 16 --micro-batch-size 1 "
      "--global-batch-size 4");
  const Words flags = shape + words(
                                  "--lr 1e-3 --train-iters 2 --data-path text --eval-interval 2 --eval-iters 1 "
                                  "--log-interval 1 --metrics-jsonl metrics.jsonl --save kept");
  const Outcome alone = run(limited(training, program("train", flags)), folder);
  EXPECT_EQ(alone.code, 6);
  EXPECT_THAT(alone.errors(), ::testing::ElementsAre(HasSubstr("out of memory")));

  const Words shares = {"--data-parallel-sharding-strategy", "optim_grads_params"};
  const Words planned = program("plan", shape + shares + Words{"--world-size", "4"});
  const Outcome plan = run_ok(limited(training, planned), folder);
  EXPECT_THAT(plan.out, HasSubstr("memory per rank"));
  const Outcome four = run_ok(mpi_command(4, limited(training, program("train", flags + shares))), folder);
  const Words steps = steps_of(folder.read_lines("metrics.jsonl"));
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_THAT(steps.back(), ::testing::Not(::testing::EndsWith(" -"))) << "the loss of an evaluation";

  const Words sample = program("generate", {"--load", "kept", "--prompt", "It is", "--max-new-tokens", "3"});
  EXPECT_EQ(run(limited(sampling, sample), folder).code, 6);
  const Outcome text = run_ok(mpi_command(4, limited(sampling, sample)), folder);
  EXPECT_THAT(text.out, ::testing::StartsWith("It is"));
}

// Embedding and head are sharded if the memory of --rates cannot hold unsharded ones.
TEST(LayoutRuns, PlanListsTheActionsOfWhatItForecasts) {
  const Folder folder;
  const auto rates_of = [&](const std::string& name, const std::string& memory) {
    std::ifstream file(MEGALITH_SOURCE_DIR "/configs/rates/h200.toml");
    std::string text;
    for (std::string line; std::getline(file, line);)
      text += line.starts_with("device-memory-gib")    ? memory + "\n"
              : line.starts_with("device-reserve-gib") ? "device-reserve-gib = 0\n"
                                                       : line + "\n";
    folder.write(name, text);
    return Words{"--rates", name};
  };
  const auto listed = [&](const Words& more) {
    const Words flags = words(
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 16 --global-batch-size 8 --world-size 4 "
        "--untie-embeddings-and-output-weights --data-parallel-sharding-strategy optim_grads_params --print-actions");
    const Outcome plan = run_ok(program("plan", flags + more), folder);
    return plan.out;
  };
  const std::string whole = listed({}), sharded = listed({"--fsdp-embedding-and-head", "sharded"});
  EXPECT_NE(whole, sharded);
  EXPECT_EQ(listed(rates_of("large.toml", "device-memory-gib = 1")), whole);
  EXPECT_EQ(listed(rates_of("small.toml", "device-memory-gib = 0.0001")), sharded);
}

TEST(LayoutRuns, PlanShowsWhichRankIsWhat) {
  const Folder folder;
  const Words shape = {"--num-layers", "4",  "--hidden-size",       "32", "--num-attention-heads", "4",
                       "--seq-length", "16", "--global-batch-size", "16"};
  const Outcome plan = run_ok(program("plan", shape + kTwoByTwo + Words{"--world-size", "8"}), folder);
  EXPECT_THAT(plan.out, HasSubstr("(tp 2 x dp 2 x pp 2)"));
  EXPECT_THAT(plan.out, HasSubstr("mesh (rank = tp + 2 x (dp + 2 x pp))\n"
                                  "  pp 0   dp 0     tp 0 to 1  ranks 0 to 1\n"
                                  "  pp 0   dp 1     tp 0 to 1  ranks 2 to 3\n"
                                  "  pp 1   dp 0     tp 0 to 1  ranks 4 to 5\n"
                                  "  pp 1   dp 1     tp 0 to 1  ranks 6 to 7\n"));
  EXPECT_THAT(plan.out, HasSubstr("stage 1    ranks     4 to 7     layers 2 to 3, loss"));
  EXPECT_THAT(plan.out, HasSubstr("memory per rank of stage 1"));
}

}  // namespace
}  // namespace megalith::test

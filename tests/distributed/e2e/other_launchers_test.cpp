// Ranks that torchrun, or srun without PMIx, starts: they meet as those of mpirun do, and end together. A shell with
// the variables of these launchers starts them; torchrun itself too, if ${PYTHON:-python3} has torch.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <sstream>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

// Starts two ranks at once, as `launcher` does, and prints "rank R: CODE" for each. They write their ids to r0 and r1.
Words two_ranks(const std::string& launcher, const Words& command) {
  static int launches = 0;
  const std::string id = std::to_string(getpid()) + std::to_string(++launches);
  const std::string variables = launcher == "srun"
                                    ? "SLURM_JOB_ID=" + id +
                                          " SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 "
                                          "SLURM_LOCALID=$r SLURM_PROCID=$r"
                                    : "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + id +
                                          " WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 LOCAL_RANK=$r "
                                          "RANK=$r";
  const std::string script = "for r in 0 1; do env " + variables +
                             " \"$@\" & p[$r]=$!; echo ${p[$r]} >r$r; done; "
                             "for r in 0 1; do wait ${p[$r]}; echo \"rank $r: $?\"; done";
  return Words{"/bin/bash", "-c", script, "bash"} + command;
}

std::string chosen_python() {
  const char* const variable = std::getenv("PYTHON");
  return variable != nullptr ? variable : "python3";
}

class OtherLaunchers : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, OtherLaunchers, testing::Values("srun", "torchrun"));

TEST_P(OtherLaunchers, LossesAreThoseOfMpirun) {
  const Folder folder;
  const Words flags = tiny_mock() + Words{"--metrics-jsonl"};
  run_ok(program_on(2, "train", flags + Words{"mpirun.jsonl"}), folder);
  const Outcome outcome = run(two_ranks(GetParam(), program("train", flags + Words{"two.jsonl"})), folder);
  EXPECT_THAT(outcome.out, HasSubstr("  ranks   2 on "));
  EXPECT_THAT(outcome.out, HasSubstr("rank 0: 0\nrank 1: 0\n")) << outcome.err;
  EXPECT_EQ(steps_of(folder.read_lines("two.jsonl")), steps_of(folder.read_lines("mpirun.jsonl")));
}

TEST_P(OtherLaunchers, RanksEndTogether) {
  const auto codes = [](const Folder& folder, const Words& ranks, int signal) {
    const Words flags = tiny_mock() + words("--train-iters 1000000 --save kept");
    Process process(two_ranks(GetParam(), program("train", flags)), folder);
    EXPECT_TRUE(process.wait_for_output(" step 2/"));
    for (const std::string& rank : ranks) kill(std::stoi(folder.read(rank)), signal);
    const Outcome outcome = process.finish();
    return outcome.out.substr(outcome.out.find("rank 0: "));
  };
  const Folder folder;
  EXPECT_EQ(codes(folder, {"r1"}, SIGKILL), "rank 0: 7\nrank 1: 137\n");
  EXPECT_EQ(codes(folder, {"r0"}, SIGKILL), "rank 0: 137\nrank 1: 7\n");
  EXPECT_EQ(codes(folder, {"r0", "r1"}, SIGTERM), "rank 0: 75\nrank 1: 75\n");
  const Outcome usage = run(two_ranks(GetParam(), program("train", tiny_mock() + words("--seed x"))), folder);
  EXPECT_EQ(usage.out, "rank 0: 2\nrank 1: 2\n");
  EXPECT_EQ(usage.errors().size(), 1u) << usage.err;
}

TEST(RanksWithoutMpi, WhatTheyCannotDoIsAnError) {
  const Folder folder;
  const auto refused = [&](const Words& variables, int code, const std::string& line) {
    const Outcome outcome =
        run(Words{"/usr/bin/env"} + variables + program("train", tiny_mock() + words("--comm-timeout 5")), folder);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.errors(), ElementsAre(StartsWith("train: error: [rank " + line))) << outcome.err;
  };
  refused(
      words("WORLD_SIZE=16 RANK=3 LOCAL_WORLD_SIZE=8"), 2,
      "3/16] 16 ranks of torchrun: expected all ranks on one host, got 8 on this host; start ranks on several hosts "
      "by mpirun, which uses srun in a job of Slurm, or by srun --mpi=pmix");
  refused(words("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_STEP_NUM_NODES=2"), 2,
          "0/4] 4 ranks of srun: expected all ranks on one host, got an unknown number on this host; ");
  refused(words("WORLD_SIZE=2 RANK=0 LOCAL_WORLD_SIZE=2 MPIRUN=/nowhere/mpirun"), 7,
          "0/2] ranks without MPI's launcher: expected mpirun of Open MPI to connect the ranks, got no such program; ");
  refused(words("WORLD_SIZE=2 RANK=1 LOCAL_WORLD_SIZE=2"), 7,
          "1/2] ranks without MPI's launcher: expected all ranks, got a timeout; ");
}

TEST(RanksWithoutMpi, TorchrunStartsRanks) {
  const std::string python = chosen_python();
  if (std::system((python + " -c 'import torch.distributed.run' >/dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << python << " has no torch; PYTHON names another interpreter";
  const Folder folder;
  const Words flags = tiny_mock() + Words{"--metrics-jsonl"};
  run_ok(program_on(2, "train", flags + Words{"mpirun.jsonl"}), folder);
  const Words torchrun = {"/usr/bin/env",     python, "-m",         "torch.distributed.run", "--standalone",
                          "--nproc-per-node", "2",    "--no-python"};
  run_ok(torchrun + program("train", flags + Words{"two.jsonl"}), folder);
  EXPECT_EQ(steps_of(folder.read_lines("two.jsonl")), steps_of(folder.read_lines("mpirun.jsonl")));
  Process process(torchrun + program("train", tiny_mock() + words("--train-iters 1000000 --save kept")), folder);
  ASSERT_TRUE(process.wait_for_output(" step 2/"));
  process.signal(SIGTERM);
  const Outcome outcome = process.finish();
  EXPECT_THAT(outcome.out + outcome.err, HasSubstr("stopped on request after step "));
}

TEST(RanksWithoutMpi, TheJobOfKubernetesIsValid) {
  const std::string python = chosen_python();
  if (std::system((python + " -c 'import yaml' >/dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << python << " has no yaml; PYTHON names another interpreter";
  const Folder folder;
  const std::string file = MEGALITH_SOURCE_DIR "/configs/kubernetes/train.yaml";
  const Outcome job =
      run_ok({"/usr/bin/env", python, MEGALITH_SOURCE_DIR "/tests/distributed/e2e/check_job.py", file}, folder);
  Words flags = {"--print-config"};
  std::istringstream lines(job.out);
  for (std::string line; std::getline(lines, line);)
    flags.push_back(line == "configs/llama3_8b.toml" ? MEGALITH_SOURCE_DIR "/" + line : line);
  EXPECT_GT(flags.size(), 20u);
  run_ok(program("train", flags), folder);
}

}  // namespace
}  // namespace megalith::test

// --async-save as a user sees it, on two ranks under mpirun.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

Words command(const std::string& name, const Words& more = {}) {
  return program_on(2, "train",
                    stateful() +
                        Words{"--save", name, "--load", name, "--save-interval", "2", "--metrics-jsonl",
                              name + ".jsonl", "--use-distributed-optimizer"} +
                        more);
}

TEST(AsyncSave, SavesWhatASaveAtOnceDoesAndGoesOnFromIt) {
  const Folder folder;
  folder.make_text();
  ASSERT_EQ(run(command("plain"), folder).code, 0);
  const Outcome first = run(command("beside", {"--async-save", "--exit-interval", "3"}), folder);
  ASSERT_EQ(first.code, 75) << first.err;
  EXPECT_EQ(folder.read("beside/LATEST"), "step_0000003\n");
  const Outcome outcome = run_ok(command("beside", {"--async-save"}), folder);
  EXPECT_EQ(steps_of(folder.read_lines("beside.jsonl")), steps_of(folder.read_lines("plain.jsonl")));
  for (const int step : {2, 4, 6}) expect_same_tensors(folder, "beside", "plain", step);
  EXPECT_THAT(outcome.err, HasSubstr("saved beside/step_0000004 ("));
  EXPECT_THAT(outcome.err, HasSubstr(" s concurrently with the steps; stall "));
  EXPECT_THAT(outcome.err, HasSubstr("| host, checkpoint staging: "));
  EXPECT_THAT(folder.read("beside.jsonl"), HasSubstr("\"checkpoint_stall_ms\": "));
}

#ifdef MEGALITH_EXIT_CODES_SURVIVE
TEST(AsyncSave, AFaultOfAWritersThreadEndsAsThatOfASaveAtOnce) {
  const Folder folder;
  folder.make_text();
  ASSERT_EQ(run(command("start", {"--exit-interval", "1"}), folder).code, 75);
  const auto run = [&](const std::string& fault) {
    std::filesystem::remove_all(folder.path("c"));
    folder.copy("start", "c");
    return test::run(command("c", {"--async-save", "--allow-faults", "--fault-rank", "1", "--fault", fault}), folder);
  };
  const Outcome passing = run("save.shard.write:1:enospc");
  EXPECT_EQ(passing.code, 0) << passing.err;
  EXPECT_THAT(
      passing.err,
      HasSubstr("warning: checkpoint of step 2 was not saved (1 failed in a row, 3 end the run): rank 1: cannot "
                "write "));
  EXPECT_THAT(passing.err, HasSubstr("rank_0001_of_0002.safetensors: No space left on device (ENOSPC)"));
  const Outcome last = run("save.shard.sync:3:eio");
  EXPECT_EQ(last.code, 3) << last.err;
  EXPECT_THAT(last.err,
              HasSubstr("checkpoint of step 6 was not saved (1 failed in a row, 3 end the run): rank 1: cannot sync "));
  EXPECT_EQ(folder.read("c/LATEST"), "step_0000004\n");
  const Outcome memory = run("save.shard.create:2:abort-alloc");
  EXPECT_EQ(memory.code, 6) << memory.err;
  EXPECT_THAT(memory.err, HasSubstr("train: error: [rank 1/2] out of host memory"));
  EXPECT_THAT(memory.err, Not(HasSubstr("terminate")));
}
#endif

TEST(AsyncSave, PlanReportsItsHostMemory) {
  const Folder folder;
  const Words flags = words(
      "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --micro-batch-size 2 "
      "--world-size 2 --global-batch-size 4 --use-distributed-optimizer");
  const Outcome without = run_ok(program("plan", flags), folder);
  EXPECT_THAT(without.out, Not(HasSubstr("host memory")));
  const Outcome with = run_ok(program("plan", flags + Words{"--async-save"}), folder);
  EXPECT_THAT(with.out, HasSubstr("host memory per rank\n  checkpoint staging "));
}

}  // namespace
}  // namespace megalith::test

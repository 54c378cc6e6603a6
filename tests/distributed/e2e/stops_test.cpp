// Tests every orderly end of a run, and each of the exit codes that --help lists.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

Words silent_forever(const Words& more) {
  return tiny_mock() + Words{"--train-iters", "1000000", "--log-interval", "1000000", "--save", "kept"} + more;
}

int code_of(const Folder& folder, const std::string& program, const Words& flags) {
  return run(test::program(program, flags), folder).code;
}

TEST(Stops, EveryProgramListsTheExitCodes) {
  const Folder folder;
  for (const char* name : {"train", "generate", "plan", "report", "prepare", "convert"}) {
    const Outcome help = run_ok({std::string(MEGALITH_BIN_DIR "/") + name, "--help"}, folder);
    EXPECT_THAT(help.out, HasSubstr(exit_codes_text())) << name;
  }
}

TEST(Stops, EachExitCodeIsReached) {
  const Folder folder;
  folder.make_text();
  folder.copy("text.bin", "cut.bin");
  folder.write("cut.idx", "not an index");
  folder.write("file", "");
  const auto train = [&](const Words& flags) { return code_of(folder, "train", tiny_mock() + flags); };
  EXPECT_EQ(train({}), 0);
  EXPECT_EQ(train({"--lr", "x"}), 2);
  EXPECT_EQ(train({"--save", "file"}), 3);
  EXPECT_EQ(code_of(folder, "train", tiny() + Words{"--data-path", "cut"}), 4);
  EXPECT_EQ(train({"--load", "none"}), 5);
  EXPECT_EQ(train({"--hidden-size", "1048576", "--num-attention-heads", "4096"}), 6);
  EXPECT_EQ(train({"--lr", "1e38", "--clip-grad", "0", "--max-skipped-steps", "1"}), 8);  // 7: hangs_test.cpp
  EXPECT_EQ(train({"--exit-interval", "2", "--save", "kept"}), 75);
#ifdef MEGALITH_EXIT_CODES_SURVIVE
  EXPECT_EQ(
      run(program_on(2, "train", tiny_mock() + Words{"--check-hazards", "--train-iters", "2", "--suppress-wait", "0"}),
          folder)
          .code,
      9);
#endif
}

#ifdef MEGALITH_EXIT_CODES_SURVIVE
// The last allocation of the run is that of a step's memory with a larger capacity, in the middle of the run.
TEST(Stops, NoMemoryForMoreRoomEndsAllRanksWithExitCode6) {
  const Folder folder;
  const Words flags = tiny_mock() + llama() +
                      words(
                          "--num-experts 4 --expert-model-parallel-size 2 --micro-batch-size 4 --train-iters 1 "
                          "--moe-expert-rank-capacity-factor 0.1");
  const auto fail_at = [&](int allocation) {
    const Words fault = {"--allow-faults", "--fault-rank", "1", "--fault",
                         "memory.pool:" + std::to_string(allocation) + ":abort-alloc"};
    return run(program_on(2, "train", flags + fault), folder);
  };
  int fails = 1, passes = 128;
  Outcome last = fail_at(fails);
  while (passes - fails > 1) {
    const int middle = (fails + passes) / 2;
    const Outcome outcome = fail_at(middle);
    (outcome.code == 0 ? passes : fails) = middle;
    if (outcome.code != 0) last = outcome;
  }
  EXPECT_EQ(last.code, 6) << last.err;
  EXPECT_THAT(last.errors(), ElementsAre(AllOf(HasSubstr("error: [rank 1/2] step 1 needed capacity on a rank for "),
                                               HasSubstr("memory does not suffice for "))));
}
#endif

TEST(Stops, ANumericFailureIsReportedOnce) {
  const Folder folder;
  const Outcome outcome =
      run(program_on(2, "train", tiny_mock() + Words{"--lr", "1e38", "--clip-grad", "0", "--max-skipped-steps", "1"}),
          folder);
#ifdef MEGALITH_EXIT_CODES_SURVIVE
  EXPECT_EQ(outcome.code, 8);
#endif
  EXPECT_THAT(outcome.errors(),
              ElementsAre(HasSubstr(
                  "train: error: [rank 0/2] steps with NaN or Inf: expected at most 1 (--max-skipped-steps) in the "
                  "run, got 2, the last after step ")))
      << outcome.err;
  EXPECT_THAT(outcome.warnings(), ::testing::Each(AllOf(HasSubstr(" was skipped (loss "),
                                                        HasSubstr("; the first value that is not finite: rank "),
                                                        HasSubstr(", microbatch "))));
}

#ifdef MEGALITH_EXIT_CODES_SURVIVE
TEST(Stops, AStopFileEndsTheRunAndIsRemoved) {
  const Folder folder;
  Process run(program_on(2, "train", silent_forever({"--stop-file", "stop"})), folder);
  ASSERT_TRUE(run.wait_for_output("step 1/"));
  folder.write("stop", "");
  const Outcome outcome = run.finish();
  EXPECT_EQ(outcome.code, 75);
  EXPECT_THAT(outcome.err + outcome.out, HasSubstr("stopped on request after step "));
  EXPECT_FALSE(std::filesystem::exists(folder.path("stop")));
  EXPECT_THAT(folder.read("kept/LATEST"), HasSubstr("step_0"));
}

TEST(Stops, ASecondRunInTheFolderOfAnotherIsRefused) {
  const Folder folder;
  const Words again = silent_forever({"--load", "kept", "--exit-interval", "1"});
  Process first(program_on(2, "train", silent_forever({"--load", "kept", "--save-interval", "50"})), folder);
  ASSERT_TRUE(first.wait_for_output("saved kept/step_0000050"));
  expect_error(folder, program_on(2, "train", again), 3,
               AllOf(HasSubstr("train: error: [rank 0/2] --save kept: expected a folder that no other run saves "
                               "into, got one that another holds (kept/run.lock is locked)"),
                     EndsWith("; stop the other run, or name another folder")));
  const Words look = tiny_mock() + Words{"--load", "kept", "--save", "kept", "--skip-train", "--eval-iters", "1"};
  EXPECT_EQ(code_of(folder, "train", look), 0);
  const std::vector<pid_t> ranks = first.ranks();
  ASSERT_EQ(ranks.size(), 2u);
  for (const pid_t rank : ranks) kill(rank, SIGKILL);
  EXPECT_EQ(run(program_on(2, "train", again), folder).code, 75);  // at once
  EXPECT_EQ(first.finish().code, 128 + SIGKILL);
}

TEST(Stops, ASecondSignalEndsTheRunAtOnce) {
  const Folder folder;
  // Steps of seconds, so that the first request is still waiting for the end of one.
  const Words flags = silent_forever({"--load", "kept"});
  ASSERT_EQ(run(program_on(2, "train", flags + Words{"--exit-interval", "2"}), folder).code, 75);
  Process run(program_on(2, "train", flags + Words{"--global-batch-size", "40000"}), folder);
  ASSERT_TRUE(run.wait_for_output("loaded kept/step_0000002"));
  for (int i = 0; i < 100 && !run.ranks().empty(); ++i) {  // mpirun may be slow, and those that wait for it are one
    run.signal(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  EXPECT_EQ(run.finish().code, 128 + SIGUSR1);
  EXPECT_THAT(folder.read("kept/LATEST"), HasSubstr("step_0000002"));
  EXPECT_EQ(test::run(program_on(2, "train", flags + Words{"--exit-interval", "3"}), folder).code, 75);
}
#endif

// The request arrives in the last step, which lasts seconds.
TEST(Stops, AStopFileThatCameTooLateDoesNotStopTheNextRun) {
  const Folder folder;
  const Words flags = tiny_mock() + Words{"--stop-file", "stop", "--save", "kept"};
  Process last(program("train", flags + Words{"--train-iters", "1", "--global-batch-size", "20000"}), folder);
  ASSERT_TRUE(last.wait_for_handler(SIGTERM));
  folder.write("stop", "");
  EXPECT_EQ(last.finish().code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder.path("stop")));
  EXPECT_EQ(code_of(folder, "train", flags + Words{"--load", "kept", "--train-iters", "3", "--finetune"}), 0);
}

TEST(Stops, AStopFileOfAnotherRunIsRefused) {
  const Folder folder;
  const Words flags = tiny_mock() + Words{"--stop-file", "stop", "--save", "kept"};
  const auto refused = [&](const std::string& kind) {
    expect_train_error(folder, flags, 2,
                       "--stop-file stop: expected a name under which there is nothing when the run starts, got " +
                           kind + "; remove it if it was meant for another run, or name another file");
  };
  folder.write("stop", "");
  refused("a regular file");
  EXPECT_FALSE(std::filesystem::exists(folder.path("kept")));
  // An evaluation may run at the same time as the training that the file is meant for.
  EXPECT_EQ(code_of(folder, "train", flags + Words{"--skip-train", "--eval-iters", "1"}), 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path("stop")));
  std::filesystem::remove(folder.path("stop"));
  std::filesystem::create_symlink("nothing", folder.path("stop"));
  refused("a symbolic link");
  std::filesystem::remove(folder.path("stop"));
  expect_train_error(folder, flags + Words{"--metrics-jsonl", "./stop"}, 2,
                     "--stop-file and --metrics-jsonl: expected two files, got stop and ./stop, which are one; "
                     "name another file for --stop-file");
}

TEST(Stops, OnlyAFileOfOnesOwnStopsTheRun) {
  const Folder folder;
  const std::string stop = folder.path("stop");
  folder.write("precious", "x");
  std::map<std::string, std::function<void()>> kinds = {
      {"a directory", [&] { std::filesystem::create_directory(stop); }},
      {"a symbolic link", [&] { std::filesystem::create_symlink("precious", stop); }},
      {"a pipe", [&] { ASSERT_EQ(mkfifo(stop.c_str(), 0600), 0); }}};
  if (geteuid() == 0) {  // others can neither make a device nor give a file away
    kinds["a device"] = [&] { ASSERT_EQ(mknod(stop.c_str(), S_IFCHR | 0600, makedev(1, 3)), 0) << errno; };
    kinds["a regular file of another user"] = [&] {
      folder.write("other", "");
      ASSERT_EQ(chown(folder.path("other").c_str(), 12345, 12345), 0);
      std::filesystem::rename(folder.path("other"), stop);
    };
  }
  for (const auto& [kind, make] : kinds) {
    Process run(program("train", silent_forever({"--stop-file", "stop"})), folder);
    ASSERT_TRUE(run.wait_for_output("step 1/"));
    make();
    ASSERT_TRUE(
        run.wait_for_output("--stop-file: stop: expected a regular file of the user who runs the program, got " + kind +
                            "; it will not stop this run"))
        << kind;
    run.signal(SIGTERM);
    EXPECT_EQ(run.finish().code, 75);
    struct stat info {};
    ASSERT_EQ(lstat(stop.c_str(), &info), 0) << kind << " was removed";
    std::filesystem::remove(stop);
  }
  EXPECT_EQ(folder.read("precious"), "x");
}

TEST(Stops, AStopFileThatCannotBeRemovedIsAWarning) {
  const Folder folder;
  Process run(program("train", silent_forever({"--stop-file", "stop", "--allow-faults", "--fault",
                                               "stop_file.remove:1:eio", "--fault", "stop_file.remove:2:eio"})),
              folder);
  ASSERT_TRUE(run.wait_for_output("step 1/"));
  folder.write("stop", "");
  const Outcome kept = run.finish();
  EXPECT_EQ(kept.code, 75);
  EXPECT_THAT(kept.warnings(), ::testing::Contains(HasSubstr(
                                   "--stop-file: cannot remove ./stop: Input/output error (EIO); the disk or its "
                                   "connection fails: see the kernel's log; remove it before the next run")))
      << kept.err;
  const Outcome unknown = run_ok(program("train", tiny_mock() + Words{"--stop-file", std::string(5000, 'x')}), folder);
  EXPECT_THAT(unknown.warnings(), ::testing::Contains(HasSubstr("(ENAMETOOLONG); it will not stop this run")));
}

TEST(Stops, AFolderWithoutLocksIsAWarning) {
  const Folder folder;
  const auto train = [&](const Words& fault) {
    return run(program("train", tiny_mock() + Words{"--save", "kept", "--allow-faults", "--fault"} + fault), folder);
  };
  const Outcome without = train({"save_lock.lock:1:enolck", "--fault", "save.temporary.lock:1:enolck"});
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_THAT(without.warnings(), ElementsAre(HasSubstr("--save kept: its file system knows no locks: take care that "
                                                        "no other run saves there")));
  for (const char* site : {"save_lock.open:2:eio", "save_lock.lock:1:eio"}) {
    const Outcome failed = train({site});
    EXPECT_EQ(failed.code, 3) << site;
    EXPECT_THAT(failed.errors(), ElementsAre(HasSubstr("kept/run.lock: Input/output error (EIO)"))) << site;
  }
}

TEST(Stops, SigtermAndTheClock) {
  const Folder folder;
  Process run(program("train", silent_forever({})), folder);
  ASSERT_TRUE(run.wait_for_output("step 1/"));
  run.signal(SIGTERM);
  EXPECT_EQ(run.finish().code, 75);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(code_of(folder, "train", silent_forever({"--exit-duration-in-mins", "0.01"})), 75);
  EXPECT_GT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(600));
}

}  // namespace
}  // namespace megalith::test

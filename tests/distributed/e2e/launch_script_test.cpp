// Tests of apps/launch.sh: signals that it forwards as requests, and its reaction to an mpirun that does not end.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"

namespace megalith::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// `command` begins with mpirun.
Words by_script(const Words& command) {
  return Words{"/usr/bin/env", "-u", "PMIX_MCA_gds", "/bin/bash", MEGALITH_SOURCE_DIR "/apps/launch.sh"} +
         Words(command.begin() + 1, command.end());
}

// A launcher instead of mpirun that never ends. It starts its arguments as two ranks of a world of `world`. If it
// `waits`, it reaps them; otherwise they stay zombies.
class Hanging {
 public:
  Hanging(int world, bool waits, const Words& command) : run_(start(folder_, world, waits, command), folder_) {}
  Process& run() { return run_; }

 private:
  static Words start(const Folder& folder, int world, bool waits, const Words& command) {
    const std::string sizes =
        "OMPI_COMM_WORLD_SIZE=" + std::to_string(world) + " OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_RANK=";
    folder.write("hangs", "#!/bin/bash\n" + sizes + "0 \"$@\" &\n" + sizes + "1 \"$@\" &\n" + (waits ? "wait\n" : "") +
                              "exec sleep 300\n");
    EXPECT_EQ(chmod(folder.path("hangs").c_str(), 0700), 0);
    return Words{"/usr/bin/env", "MPIRUN=./hangs", "/bin/bash", MEGALITH_SOURCE_DIR "/apps/launch.sh"} + command;
  }

  Folder folder_;
  Process run_;
};

TEST(LaunchScript, AnMpirunThatOutlivesItsRanksIsEndedWithTheirExitCode) {
  const Clock::time_point start = Clock::now();
  // The program rejects being one of two ranks, since MPI has one.
  const Words train = Words{"/bin/bash", "-c", "sleep 2; exec \"$@\"", "bash"} + program("train", tiny_mock());
  Hanging recorded(2, true, train), killed(2, false, {"/bin/bash", "-c", "sleep 5; kill -KILL $$"}),
      ended(2, false, {"/bin/bash", "-c", "sleep 5; exit 7"}), unknown(2, true, {"/bin/sleep", "5"}),
      elsewhere(3, false, train), lives(2, true, {"/bin/sleep", "300"});
  EXPECT_EQ(recorded.run().finish().code, 2);
  EXPECT_GE(Clock::now() - start, seconds(10));
  EXPECT_EQ(killed.run().finish().code, 128 + SIGKILL);
  const Outcome outcome = ended.run().finish();
  EXPECT_EQ(outcome.code, 7);
  EXPECT_THAT(outcome.err,
              StartsWith("apps/launch.sh: runs PMIX_MCA_gds=hash ./hangs /bin/bash -c sleep\\ 5\\;\\ exit\\ 7\n"));
  EXPECT_THAT(outcome.err,
              EndsWith("apps/launch.sh: mpirun was killed, as it did not end within 10 s of its last rank\n"));
  EXPECT_EQ(unknown.run().finish().code, 128 + SIGKILL);  // no program of ours
  EXPECT_LT(Clock::now() - start, seconds(60));
  EXPECT_TRUE(is_running(elsewhere.run().pid()));  // a rank is on another host
  EXPECT_TRUE(is_running(lives.run().pid()));
}

TEST(LaunchScript, AnMpirunThatCrashesAfterItsRanksLeavesTheirExitCode) {
  const Folder folder;
  folder.write("crashes", "#!/bin/bash\n\"$@\"\nkill -SEGV $$\n");
  ASSERT_EQ(chmod(folder.path("crashes").c_str(), 0700), 0);
  const auto code = [&](const Words& ranks) {
    const Words script{"/usr/bin/env", "MPIRUN=./crashes", "/bin/bash", MEGALITH_SOURCE_DIR "/apps/launch.sh"};
    return run(script + ranks, folder).code;
  };
  EXPECT_EQ(code(program("train", {"--no-such-flag"})), 2);
  EXPECT_EQ(code({"/bin/true"}), 128 + SIGSEGV);
}

#ifdef MEGALITH_EXIT_CODES_SURVIVE
Words logging_forever(const Words& more) {
  return tiny_mock() + Words{"--train-iters", "1000000", "--log-interval", "1", "--save", "kept"} + more;
}

std::string environment_of_parent(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  while (status >> word && word != "PPid:") continue;
  status >> word;
  std::ifstream file("/proc/" + word + "/environ", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// In that time PMIx's ranks would hold a lock at times that mpirun then waits for.
TEST(LaunchScript, RanksThatAreKilledAsTheyStartEndTheRun) {
  constexpr int kRuns = 60;
  std::mt19937 random = random_from_seed();
  const Folder folder;
  for (int i = 0; i < kRuns / one_of(12); ++i) {
    Process run(by_script(program_on(3, "train", logging_forever({"--global-batch-size", "12"}))), folder);
    std::vector<pid_t> ranks;
    while (ranks.size() < 3 && is_running(run.pid())) ranks = run.ranks();
    ASSERT_EQ(ranks.size(), 3u);
    EXPECT_THAT(environment_of_parent(ranks[0]), HasSubstr("PMIX_MCA_gds=hash"));
    std::this_thread::sleep_for(milliseconds(50 + random() % 200));
    for (const pid_t rank : ranks) kill(rank, SIGKILL);
    const Clock::time_point killed = Clock::now();
    const Outcome outcome = run.finish();
    EXPECT_EQ(outcome.code, 128 + SIGKILL) << "run " << i;
    EXPECT_THAT(outcome.err, Not(HasSubstr("apps/launch.sh: mpirun did not end"))) << "run " << i;
    EXPECT_LT(Clock::now() - killed, seconds(30)) << "run " << i;
  }
}

// A stopped mpirun simulates one that hangs.
TEST(LaunchScript, AStoppedMpirunIsEndedWithTheCodeOfItsRanks) {
  const Folder folder;
  Process run(by_script(program_on(2, "train", logging_forever({"--global-batch-size", "40000"}))), folder);
  ASSERT_TRUE(run.wait_for_output(" parameters ("));
  const std::vector<pid_t> ranks = run.ranks();
  ASSERT_EQ(ranks.size(), 2u);
  std::ifstream status("/proc/" + std::to_string(ranks[0]) + "/status");
  std::string word;
  while (status >> word && word != "PPid:") continue;
  pid_t mpirun = 0;
  status >> mpirun;
  kill(mpirun, SIGSTOP);
  for (int request = 0; request < 2; ++request) {
    for (const pid_t rank : ranks) kill(rank, SIGUSR2);
    std::this_thread::sleep_for(milliseconds(300));
  }
  EXPECT_EQ(run.finish().code, 128 + SIGUSR2);
}

TEST(LaunchScript, WhatTheSystemRepeatsIsHandedOnAndNoSecondRequest) {
  for (const int signal : {SIGHUP, SIGXCPU}) {
    const Folder folder;
    Process run(by_script(program_on(2, "train", logging_forever({}))), folder);
    ASSERT_TRUE(run.wait_for_output("step 1/"));
    for (int i = 0; i < 4 && is_running(run.pid()); ++i) {
      run.signal(signal);
      std::this_thread::sleep_for(milliseconds(20));
    }
    const Outcome outcome = run.finish();
    EXPECT_EQ(outcome.code, 75) << outcome.err;
    EXPECT_THAT(outcome.err + outcome.out, HasSubstr("stopped on request after step "));
  }
}

TEST(LaunchScript, UnderNohupARunOutlivesItsTerminal) {
  const Folder folder;
  Process run(
      Words{"/bin/bash", "-c", "exec nohup \"$@\"", "bash"} + by_script(program_on(2, "train", logging_forever({}))),
      folder);
  ASSERT_TRUE(run.wait_for_output("step 1/"));
  run.signal(SIGHUP);
  const std::size_t lines = folder.read_lines("stdout").size();
  EXPECT_TRUE(run.wait_for_output("step " + std::to_string(lines + 200) + "/"));
  run.signal(SIGUSR2);
  EXPECT_EQ(run.finish().code, 75);
}
#endif

}  // namespace
}  // namespace megalith::test

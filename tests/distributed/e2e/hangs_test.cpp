// Tests of ranks that are stopped while they train. The run reports who waits for whom, keeps every rank's last calls,
// and leaves no process. Latency is measured and printed. Only the long form, MEGALITH_HANG_ROUNDS of tests/soak.sh,
// requires it, since that form has the machine to itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <regex>
#include <thread>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"

namespace megalith::test {
namespace {

using Clock = std::chrono::steady_clock;

#ifdef MEGALITH_EXIT_CODES_SURVIVE
constexpr double kReportedWithin = 2;  // seconds beyond --comm-timeout
constexpr double kEndedWithin = 10;    // seconds after that

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Words hanging_forever(const std::string& timeout) {
  return tiny_mock() + Words{"--train-iters",  "1000000", "--global-batch-size", "12",
                             "--log-interval", "1000000", "--comm-timeout",      timeout};
}

struct Stopped {
  Outcome outcome;
  double reported = 0;  // seconds from the stop to the report
  double ended = 0;     // from the report to the end of mpirun and all ranks
};

// mpirun does not wait for the processes that it kills.
void expect_gone(const std::vector<pid_t>& pids) {
  const auto start = Clock::now();
  for (const pid_t pid : pids) {
    while (is_running(pid) && seconds_since(start) < 60) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(is_running(pid)) << "a process is left";
  }
}

// Stops `rank` of `count` `after` the first step. Nothing that runs may be left.
Stopped stop_a_rank(const Folder& folder, const Words& flags, std::size_t rank, std::chrono::milliseconds after,
                    int count = 3) {
  Process run(program_on(count, "train", flags), folder);
  EXPECT_TRUE(run.wait_for_output("step 1/"));
  const std::vector<pid_t> ranks = run.ranks();
  EXPECT_EQ(ranks.size(), static_cast<std::size_t>(count));
  if (testing::Test::HasFailure()) return {};
  std::this_thread::sleep_for(after);
  kill(ranks[rank], SIGSTOP);
  Stopped result;
  const auto stopped = Clock::now();
  EXPECT_TRUE(run.wait_for_output(": error: "));
  result.reported = seconds_since(stopped);
  const auto reported = Clock::now();
  result.outcome = run.finish();
  expect_gone(ranks);
  result.ended = seconds_since(reported);
  return result;
}

TEST(Hangs, AStoppedRankIsNamedAndNoProcessIsLeft) {
  const Folder folder;
  folder.write("precious", "kept");
  std::filesystem::create_directory(folder.path("comm-dump"));
  std::filesystem::create_symlink("../precious", folder.path("comm-dump/comm_rank_0000.json"));
  std::filesystem::create_symlink("../precious", folder.path("comm-dump/comm_rank_0002.json.tmp"));
  const Stopped stopped = stop_a_rank(folder, hanging_forever("3"), 1, std::chrono::milliseconds(0));
  EXPECT_EQ(folder.read("precious"), "kept");  // links are replaced, not followed
  fmt::print("told {:.1f} s after the stop, ended {:.1f} s later\n", stopped.reported, stopped.ended);
  EXPECT_EQ(stopped.outcome.code, 7);
  EXPECT_THAT(
      stopped.outcome.errors(),
      ElementsAre(AllOf(HasSubstr("train: error: [rank 0/3] "), HasSubstr(" on group "), HasSubstr(" #"),
                        HasSubstr("expected its ranks 0, 1, 2 within 3.0 s (--comm-timeout), got only rank"),
                        // One of the two may have received its part ahead of the stop, and may wait in the next call.
                        AnyOf(HasSubstr("got only ranks 0, 2; "), HasSubstr("got only rank 0; rank 2 is in ")),
                        HasSubstr("; rank 1 gave no answer, so the process is stopped, lost or starved; reported "),
                        HasSubstr("; the last calls of each rank: comm-dump"))))
      << stopped.outcome.err;
  for (const char* name : {"comm-dump/comm_rank_0000.json", "comm-dump/comm_rank_0002.json"}) {
    EXPECT_THAT(folder.read(name), HasSubstr("\"kind\": \"all_reduce\", \"tensor\": \"gradients of bucket 0\""))
        << name;
    EXPECT_THAT(folder.read(name), HasSubstr("\"state\": \"running\""));
  }
}

// Stops one of two ranks that shard a stage's experts. Its peer waits for rows, the other stage for these two.
TEST(Hangs, AStoppedRankIsNamedWhereExpertsAreOnOtherRanks) {
  if (one_of(2) > 1) GTEST_SKIP() << "in the full tier";
  const Folder folder;
  const Words flags =
      hanging_forever("3") + llama() +
      words(
          "--global-batch-size 8 --num-experts 4 --moe-ffn-hidden-size 16 --expert-model-parallel-size 2 "
          "--pipeline-model-parallel-size 2 --overlap-moe-expert-parallel-comm");
  const Stopped stopped = stop_a_rank(folder, flags, 3, std::chrono::milliseconds(0), 4);
  EXPECT_EQ(stopped.outcome.code, 7);
  EXPECT_THAT(stopped.outcome.errors(),
              ElementsAre(HasSubstr("rank 3 (dp 1 pp 1 tp 0 ep 1) gave no answer, so the process is stopped")))
      << stopped.outcome.err;
  EXPECT_THAT(
      folder.read("comm-dump/comm_rank_0002.json"),
      AllOf(HasSubstr("\"kind\": \"exchange_rows\", \"tensor\": \"rows of layer 1's experts\""),
            HasSubstr("\"tensor\": \"numbers of rows of layer 1's experts\""), HasSubstr("\"state\": \"running\"")));
}

// A dump that cannot be written hides neither the message nor the exit code.
TEST(Hangs, AFailingDumpHidesNothing) {
  for (const char* operation : {"mkdir", "write"}) {
    const Folder folder;
    const std::string site = fmt::format("comm_dump.{}:1:enospc", operation);
    const Stopped stopped = stop_a_rank(folder, hanging_forever("3") + Words{"--allow-faults", "--fault", site}, 1,
                                        std::chrono::milliseconds(0));
    EXPECT_EQ(stopped.outcome.code, 7) << site;
    EXPECT_THAT(stopped.outcome.errors(),
                ElementsAre(AllOf(HasSubstr("train: error: [rank 0/3] "), HasSubstr("; rank 1 gave no answer"),
                                  HasSubstr("; the last calls of each rank: comm-dump"))))
        << stopped.outcome.err;
    EXPECT_THAT(stopped.outcome.warnings(),
                AllOf(Not(IsEmpty()), Each(AllOf(HasSubstr("the last calls are not kept: cannot "),
                                                 HasSubstr("comm-dump"), HasSubstr("(ENOSPC)")))))
        << stopped.outcome.err;
  }
}

// A debugger, a batch system or a laptop's lid may stop all ranks; this is no error.
TEST(Hangs, ARunThatIsSuspendedGoesOn) {
  const Folder folder;
  Process run(program_on(2, "train", hanging_forever("2.5") + Words{"--global-batch-size", "8"}), folder);
  ASSERT_TRUE(run.wait_for_output("step 1/"));
  const std::vector<pid_t> ranks = run.ranks();
  ASSERT_EQ(ranks.size(), 2u);
  for (const pid_t pid : ranks) kill(pid, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  for (const pid_t pid : ranks) kill(pid, SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  run.signal(SIGUSR1);
  const Outcome outcome = run.finish();
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_THAT(outcome.errors(), ElementsAre());
}

// Without the check the ranks would reduce gradients of different sizes, or call collectives that others do not call.
TEST(Hangs, RanksWithOtherFlagsDoNotStart) {
  const Words flags = tiny_mock() + Words{"--overlap-grad-reduce", "--global-batch-size", "6", "--comm-timeout", "20"};
  for (const Words& other : {Words{"--ddp-bucket-size", "2000"}, Words{"--hidden-size", "64"}, Words{"--load", "kept"},
                             Words{"--trace", "trace.json"}, Words{"--print-config"}}) {
    const Folder folder;
    const Outcome outcome =
        run(program_on(2, "train", flags) + Words{":", "-n", "1"} + program("train", flags + other), folder);
    EXPECT_EQ(outcome.code, 2) << other[0];
    const std::string got = ": expected the value of rank 0 on all ranks, got " + other[0] + " ";
    EXPECT_THAT(outcome.errors(),
                ElementsAre(AllOf(HasSubstr(other[0] + " "), HasSubstr(got), HasSubstr(" on rank 2; "))));
  }
}

struct Worst {
  double reported = 0;
  double ended = 0;
  void add(double one_reported, double one_ended) {
    reported = std::max(reported, one_reported);
    ended = std::max(ended, one_ended);
  }
};

// Runs each kind of mpi_hang, whose timeout is 3 s; kinds that only disagree need not wait for it.
void hang_in_each_way(Worst& worst) {
  for (const char* kind : {"stop", "loop", "skip", "host", "order", "count", "dtype", "rows", "rows_order"}) {
    const Folder folder;
    Process run(mpi_command(3, {MEGALITH_MPI_HANG, kind, "dump"}), folder);
    EXPECT_TRUE(run.wait_for_output("rank ")) << kind;
    const auto reported = Clock::now();
    const std::vector<pid_t> ranks = run.ranks();
    const Outcome outcome = run.finish();
    expect_gone(ranks);
    const double ended = seconds_since(reported);
    EXPECT_EQ(outcome.code, 7) << kind << outcome.err;
    EXPECT_NE(folder.read("dump/comm_rank_0000.json").find("\"sequence\": 70, \"kind\": \"all_reduce\""),
              std::string::npos)
        << kind;
    std::smatch match;
    if (std::regex_search(outcome.err, match, std::regex("reported ([0-9.]+) s after"))) {
      worst.add(std::stod(match[1]) - 3, ended);
      fmt::print("{}: told {} s after the call began, ended {:.1f} s later\n", kind, match[1].str(), ended);
    } else {
      worst.add(0, ended);
      fmt::print("{}: told at once, ended {:.1f} s later\n", kind, ended);
      EXPECT_THAT(outcome.err, AnyOf(HasSubstr("message from rank"), HasSubstr("expected the same call"))) << kind;
    }
  }
}

TEST(Hangs, LongMeasured) {
  const char* rounds = std::getenv("MEGALITH_HANG_ROUNDS");
  if (rounds == nullptr) GTEST_SKIP() << "set MEGALITH_HANG_ROUNDS, as tests/soak.sh does";
  std::mt19937 random = random_from_seed();
  Worst stops, ways;
  const Words flags = hanging_forever("3") + Words{"--save", "kept", "--save-interval", "20", "--keep-last", "2"};
  for (int round = 0; round < std::atoi(rounds) && !HasFailure(); ++round) {
    const Folder folder;
    const std::size_t rank = random() % 3;
    const Stopped stopped = stop_a_rank(folder, flags, rank, std::chrono::milliseconds(random() % 1500));
    EXPECT_EQ(stopped.outcome.code, 7) << stopped.outcome.err;
    EXPECT_THAT(stopped.outcome.err, HasSubstr(fmt::format("rank {} gave no answer", rank)));
    stops.add(stopped.reported - 3, stopped.ended);
    hang_in_each_way(ways);
  }
  fmt::print("stopped ranks: told at most {:.2f} s after the timeout, ended at most {:.2f} s later\n", stops.reported,
             stops.ended);
  fmt::print("ways to hang: told at most {:.2f} s after the timeout, ended at most {:.2f} s later\n", ways.reported,
             ways.ended);
  EXPECT_LE(std::max(stops.reported, ways.reported), kReportedWithin);
  EXPECT_LE(std::max(stops.ended, ways.ended), kEndedWithin);
}
#endif

}  // namespace
}  // namespace megalith::test

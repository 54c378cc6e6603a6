// Tests of programs started and ended from outside: under launchers that MPI does not know, with closed outputs, and in
// a terminal. In one case mpirun itself is killed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

namespace fs = std::filesystem;

Words saving_forever(const Words& more) {
  return tiny_mock() + Words{"--train-iters", "1000000", "--log-interval",  "1", "--save", "kept",
                             "--load",        "kept",    "--save-interval", "50"} +
         more;
}

Outcome with_variable(const Folder& folder, const std::string& variable, const Words& command) {
  return run(Words{"/usr/bin/env", variable} + command, folder);
}

// A shell's command line, in which $0 stands for the program and its arguments.
Outcome in_shell(const Folder& folder, const std::string& line, const Words& command) {
  std::string quoted;
  for (const std::string& word : command) quoted += " '" + word + "'";
  std::string text = line;
  text.replace(text.find("$0"), 2, quoted);
  return run({"/bin/bash", "-c", text}, folder);
}

TEST(Launch, CopiesOfRankZeroAreRefused) {
  const Folder folder;
  folder.write("text.txt", "a text");
  const Outcome train = with_variable(folder, "WORLD_SIZE=2", program("train", saving_forever({})));
  EXPECT_EQ(train.code, 2);
  EXPECT_THAT(train.errors(),
              ElementsAre("train: error: [rank 0/1] WORLD_SIZE=2: expected a world of 2 ranks in MPI, got a world of 1 "
                          "rank; start the ranks by mpirun -np 2 of the Open MPI that train was built with, or by srun "
                          "--mpi=pmix; use mpirun -np 1 for one rank"));
  const Outcome prepare = with_variable(folder, "OMPI_COMM_WORLD_SIZE=2",
                                        program("prepare", {"--input", "text.txt", "--output-prefix", "out"}));
  EXPECT_EQ(prepare.code, 2);
  EXPECT_FALSE(fs::exists(folder.path("out.bin")) || fs::exists(folder.path("kept")));
}

TEST(Launch, OutputThatIsLostIsAnError) {
  const Folder folder;
  const auto expect = [&](const std::string& name, const std::string& line) {
    const Outcome outcome = in_shell(folder, line, {std::string(MEGALITH_BIN_DIR "/") + name, "--help"});
    EXPECT_EQ(outcome.code, 3) << name << ": " << line;
    EXPECT_THAT(outcome.errors(),
                ElementsAre(AllOf(HasSubstr(name + ": error: "), HasSubstr("cannot write to standard output; "))))
        << outcome.err;
  };
  for (const char* name : {"train", "generate", "plan", "report", "prepare", "convert"}) expect(name, "$0 >/dev/full");
  expect("report", "$0 >&-");
  // Nor is printed text written to the file that is opened next.
  folder.write("text.txt", "a text");
  const auto prepare = [&](const char* line, const char* prefix) {
    return in_shell(folder, line, program("prepare", {"--input", "text.txt", "--output-prefix", prefix})).code;
  };
  EXPECT_EQ(prepare("$0", "open"), 0);
  EXPECT_EQ(prepare("$0 >&- <&-", "closed"), 3);
  EXPECT_EQ(folder.read("closed.bin"), folder.read("open.bin"));
  EXPECT_EQ(folder.read("closed.idx"), folder.read("open.idx"));
  expect("report", "set -o pipefail; (sleep 0.2; $0) | true");  // the reader has ended by then
}

TEST(Launch, ALimitOfFileSizesLeavesNoHalfFile) {
  const Folder folder;
  folder.write("text.txt", std::string(100'000, 'a'));
  const Outcome outcome =
      in_shell(folder, "ulimit -f 64; exec $0", program("prepare", {"--input", "text.txt", "--output-prefix", "out"}));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.errors(), ElementsAre(HasSubstr("out.bin: File too large (EFBIG)"))) << outcome.err;
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder.path("."))) left.insert(entry.path().filename().string());
  EXPECT_THAT(left, ElementsAre("exit_codes", "stderr", "stdout", "text.txt"));
}

TEST(Launch, AClosedPipeSavesAndEnds) {
  const Folder folder;
  const Outcome outcome = in_shell(folder, "$0 | head -n 1; exit ${PIPESTATUS[0]}",
                                   program("train", saving_forever({"--log-interval", "1"})));
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_THAT(folder.read("kept/LATEST"), HasSubstr("step_0"));
}

TEST(Launch, CtrlCSavesAndASecondEndsAtOnce) {
  const Folder folder;
  Process once(program("train", saving_forever({})), folder);
  ASSERT_TRUE(once.wait_for_output("step 1/"));
  once.signal(SIGINT);
  const Outcome saved = once.finish();
  EXPECT_EQ(saved.code, 75);
  EXPECT_THAT(saved.err, AllOf(HasSubstr("[megalith] asked to stop: saves after the step under way"),
                               HasSubstr("stopped on request after step ")));
  Process twice(program("train", saving_forever({"--global-batch-size", "40000"})), folder);
  ASSERT_TRUE(twice.wait_for_output("loaded kept/step_"));
  while (is_running(twice.pid())) {
    twice.signal(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
  }
  EXPECT_EQ(twice.finish().code, 128 + SIGINT);
}

#ifdef MEGALITH_EXIT_CODES_SURVIVE
TEST(Launch, CtrlCUnderTheScriptSavesOnAllRanks) {
  const Folder folder;
  const Words command = program_on(2, "train", saving_forever({}));
  Process run(Words{"/bin/bash", MEGALITH_SOURCE_DIR "/apps/launch.sh"} + Words(command.begin() + 1, command.end()),
              folder);
  ASSERT_TRUE(run.wait_for_output("step 1/"));
  run.signal(SIGINT);
  const Outcome outcome = run.finish();
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_THAT(outcome.err + outcome.out, HasSubstr("stopped on request after step "));
}

// Holds also ahead of the ranks' start: there is nothing to save yet, and the run does not begin.
TEST(Launch, ACtrlCUnderTheScriptIsNeverLost) {
  for (const int milliseconds : {20, 60, 120, 250, 500}) {
    const Folder folder;
    const Words command = program_on(2, "train", saving_forever({}));
    Process run(Words{"/bin/bash", MEGALITH_SOURCE_DIR "/apps/launch.sh"} + Words(command.begin() + 1, command.end()),
                folder);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    run.signal(SIGINT);
    EXPECT_NE(run.finish().code, 0) << milliseconds;  // it would never end
  }
}

// Inodes of the sockets that listen for TCP.
std::set<std::string> listening() {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::vector<std::string> fields;
      for (std::string word; words >> word;) fields.push_back(word);
      if (fields.size() > 9 && fields[3] == "0A") inodes.insert("socket:[" + fields[9] + "]");
    }
  }
  return inodes;
}

std::string maps_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/maps");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void expect_no_port(pid_t pid) {
  const std::set<std::string> ports = listening();
  int sockets = 0;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    sockets += target.starts_with("socket:") ? 1 : 0;
    EXPECT_FALSE(ports.contains(target)) << "rank process " << pid << " listens";
  }
  EXPECT_GT(sockets, 0);  // to mpirun
}

std::vector<std::string> shared_folders(const std::vector<pid_t>& ranks) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    for (const pid_t rank : ranks) {
      if (name.starts_with("megalith-") && name.find("-" + std::to_string(rank) + "-") != std::string::npos)
        found.push_back(name);
    }
  }
  return found;
}

void expect_gone(const std::vector<pid_t>& ranks) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (const pid_t rank : ranks) {
    while (is_running(rank) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(is_running(rank)) << "a rank is left";
  }
}

// Starts or continues a run, until it trains.
class Training {
 public:
  explicit Training(const Folder& folder) : run_(program_on(2, "train", saving_forever({})), folder) {
    EXPECT_TRUE(run_.wait_for_output("step "));
    ranks_ = run_.ranks();
    EXPECT_EQ(ranks_.size(), 2u);
  }
  const std::vector<pid_t>& ranks() const { return ranks_; }
  Process& mpirun() { return run_; }
  int end() {
    const int code = run_.finish().code;
    expect_gone(ranks_);
    return code;
  }

 private:
  Process run_;
  std::vector<pid_t> ranks_;
};

TEST(Launch, MpirunIsKilledOrInterruptedAndTheNextRunGoesOn) {
  const Folder folder;
  Training first(folder);
  for (const pid_t rank : first.ranks()) {
    expect_no_port(rank);
    // PMIx would share a locked segment with mpirun, and a killed rank never releases the lock.
    EXPECT_THAT(maps_of(rank), AllOf(HasSubstr("/dev/shm/megalith-"), Not(HasSubstr("pmix_dstor"))));
  }
  ASSERT_TRUE(first.mpirun().wait_for_output("saved kept/step_0000050"));
  first.mpirun().signal(SIGKILL);
  for (const pid_t rank : first.ranks()) kill(rank, SIGKILL);
  EXPECT_EQ(first.end(), 128 + SIGKILL);
  EXPECT_EQ(shared_folders(first.ranks()).size(), 2u);
  Training second(folder);
  ASSERT_TRUE(second.mpirun().wait_for_output("loaded kept/step_"));
  EXPECT_THAT(shared_folders(first.ranks()), IsEmpty());
  second.mpirun().signal(SIGKILL);
  EXPECT_EQ(second.end(), 128 + SIGKILL);
  Training third(folder);
  third.mpirun().signal(SIGINT);  // Open MPI's mpirun gives its ranks two seconds, and ends with 1
  EXPECT_NE(third.end(), 0);
  EXPECT_EQ(run(program("train", saving_forever({"--exit-interval", "1"})), folder).code, 75);
}

TEST(Launch, ARankThatDoesNotStartEndsTheRun) {
  const Folder folder;
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  const int silent = ::open(folder.path("pipe").c_str(), O_RDWR | O_CLOEXEC);  // a writer that never writes
  const Words flags = tiny_mock() + Words{"--comm-timeout", "1"};
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome =
      run(program_on(1, "train", flags) + Words{":", "-n", "1"} + program("train", flags + Words{"--config", "pipe"}),
          folder);
  EXPECT_EQ(outcome.code, 7) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(" within 5.0 s (--comm-timeout), got a timeout; check that "));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  ::close(silent);
}
#endif

}  // namespace
}  // namespace megalith::test

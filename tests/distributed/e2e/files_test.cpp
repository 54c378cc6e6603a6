// A program checks size and kind of each path first: one line, and no memory for files that it does not read.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

namespace fs = std::filesystem;
using ::testing::MatchesRegex;

// Runs a program with 4 GiB of address space; the shell executes `before` first.
Outcome run_small(const Folder& folder, const std::string& name, const Words& arguments,
                  const std::string& before = {}) {
  std::string command = "ulimit -v 4194304; " + before + " exec";
  for (const std::string& word : program(name, arguments)) command += " '" + word + "'";
  return run({"/bin/bash", "-c", command}, folder);
}

class HostileFiles : public testing::Test {
 protected:
  HostileFiles() {
    for (const char* name : {"sparse", "sparse.jsonl", "hf/config.json"}) {
      fs::create_directories(fs::path(folder_.path(name)).parent_path());
      folder_.write(name, "");
      fs::resize_file(folder_.path(name), std::uint64_t{12} << 30);  // a hole: it uses no disk space
    }
    fs::create_symlink("/dev/zero", folder_.path("zero.jsonl"));
    fs::create_directory(folder_.path("folder"));
  }

  void expect(const std::string& name, const Words& arguments, int code, const std::string& message,
              const std::string& before = {}) {
    SCOPED_TRACE(name + " " + testing::PrintToString(arguments));
    const Outcome outcome = run_small(folder_, name, arguments, before);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_THAT(outcome.errors(), ElementsAre(HasSubstr(message))) << outcome.err;
  }

  const Folder folder_;
  const Words shape_ = {"--num-layers", "2",  "--hidden-size",       "32", "--num-attention-heads", "4",
                        "--seq-length", "16", "--global-batch-size", "4"};
  const Words tokenizer_ = {"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model"};
};

// The error names the shell limit that was reached, which is the one to raise.
TEST(MemoryLimits, AreNamedWhereMemoryRunsOut) {
  const Folder folder;
  const auto run = [&](const std::string& limits, const std::string& name, const Words& arguments) {
    std::string command = limits + " exec";
    for (const std::string& word : program(name, arguments)) command += " '" + word + "'";
    return test::run({"/bin/bash", "-c", command}, folder);
  };
  // Limit in KiB that leaves memory for the program's libraries, and for `more`.
  const auto room = [&](const std::string& flag, const std::string& name, int more) {
    int kib = 100'000;
    while (kib < 20'000'000 && run(fmt::format("ulimit {} {};", flag, kib), name, {"--version"}).code != 0)
      kib += 100'000;
    return std::to_string(kib + more);
  };
  const auto expect = [&](const std::string& limits, const std::string& name, const Words& arguments,
                          const std::string& message) {
    SCOPED_TRACE(limits);
    const Outcome outcome = run(limits, name, arguments);
    EXPECT_EQ(outcome.code, 6) << outcome.err;
    EXPECT_THAT(outcome.errors(), ElementsAre(MatchesRegex(name + ": error: " + message))) << outcome.err;
  };
  const Words deep =
      words("--num-layers 9000 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --micro-batch-size 1");
  for (const auto& [flag, what] : {std::pair{"-v", "addresses"}, {"-d", "data"}}) {
    const std::string kib = room(flag, "plan", 100'000);
    expect(fmt::format("ulimit {} {};", flag, kib), "plan", deep,
           fmt::format("out of host memory: ulimit {} allows this process {} KiB of {}, of which it took up to [0-9]+; "
                       "raise that limit",
                       flag, kib, what));
  }
  // Threads whose stacks exceed the remaining memory; the limit of processes is a different one.
  const std::string kib = room("-v", "train", 500'000);
  expect(fmt::format("ulimit -s 1048576; ulimit -v {};", kib), "train", tiny_mock(),
         fmt::format(".*no memory for the stack of a thread: ulimit -v allows this process {} KiB of addresses, of "
                     "which it took up to [0-9]+; raise that limit",
                     kib));
}

TEST_F(HostileFiles, Tokenizers) {
  constexpr const char* kTooLarge = "sparse: expected at most 67108864 bytes, got 12884901888; check the path";
  expect("train", tiny_mock() + tokenizer_ + Words{"sparse"}, 4, kTooLarge);
  expect("plan", shape_ + tokenizer_ + Words{"sparse"}, 4, kTooLarge);
  const Words prepare = Words{"--input", "t.txt", "--output-prefix", "out"} + tokenizer_;
  expect("prepare", prepare + Words{"sparse"}, 4, kTooLarge);
  expect("prepare", prepare + Words{"/dev/zero"}, 3, "/dev/zero: a device or a socket, not a regular file");
  expect("prepare", prepare + Words{"folder"}, 3, "cannot open folder/tokenizer.json: No such file");

  fs::copy(MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/gpt2.json", folder_.path("t.json"));
  const Words train = tiny_mock() + tokenizer_ + Words{"t.json", "--save", "kept", "--train-iters", "1"};
  ASSERT_EQ(run(program("train", train), folder_).code, 0);
  expect("generate", {"--load", "kept", "--tokenizer-model", "sparse"}, 4, kTooLarge);
}

TEST_F(HostileFiles, Configurations) {
  expect("train", tiny_mock() + Words{"--config", "sparse"}, 2, "sparse: expected a configuration of at most 1 MiB");
  expect("plan", {"--config", "/dev/zero"}, 2, "/dev/zero: expected a configuration of at most 1 MiB");
  expect("plan", {"--config", "folder"}, 3, "folder: a directory, not a regular file");
  expect("plan", shape_ + Words{"--rates", "sparse"}, 2, "sparse: expected a file of rates of at most 64 KiB");
  expect("plan", {"--config", "/dev/stdin"}, 2, "/dev/stdin: expected a configuration of at most 1 MiB",
         "exec < <(yes);");
  expect("convert", {"--from", "hf", "--load", "hf", "--save", "out"}, 4, "hf/config.json: expected at most");
}

TEST_F(HostileFiles, Metrics) {
  expect("report", {"sparse.jsonl"}, 4, "sparse.jsonl: expected at most 2147483648 bytes, got more");
  expect("report", {"zero.jsonl"}, 4, "zero.jsonl:1: expected a line of at most 1048576 bytes, got more");
  expect("report", {"folder"}, 3, "folder: a directory, not a regular file");
  expect("report", {"/dev/stdin"}, 4, "/dev/stdin:1: expected a JSON object with an iteration", "exec < <(yes);");
  ASSERT_EQ(run(program("train", tiny_mock() + Words{"--metrics-jsonl", "m.jsonl"}), folder_).code, 0);
  const Outcome piped = run_small(folder_, "report", {"/dev/stdin", "--output", "r.html"}, "exec < <(cat m.jsonl);");
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_THAT(folder_.read("r.html"), HasSubstr("</html>"));
}

TEST_F(HostileFiles, TextAndDataSets) {
  const auto prepare = [](const std::string& input) { return Words{"--input", input, "--output-prefix", "out"}; };
  expect("prepare", prepare("sparse.jsonl"), 4, "sparse.jsonl:1: expected a JSON object of at most 64 MiB");
  expect("prepare", prepare("zero.jsonl"), 4, "zero.jsonl:1: expected a JSON object of at most 64 MiB");
  expect("prepare", prepare("/dev/zero"), 3, "/dev/zero: a device or a socket, not a regular file");
  for (const char* pipe : {"endless.jsonl", "pipe.jsonl"}) ASSERT_EQ(mkfifo(folder_.path(pipe).c_str(), 0600), 0);
  expect("prepare", prepare("endless.jsonl"), 4, "endless.jsonl:1: expected a JSON object",
         "(yes > endless.jsonl) & sleep 1;");
  const Outcome piped = run_small(folder_, "prepare", prepare("pipe.jsonl"),
                                  "(for i in {1..999}; do echo '{\"text\": \"a\"}'; done > pipe.jsonl) & sleep 1;");
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_THAT(piped.out, HasSubstr("999 documents"));
}

}  // namespace
}  // namespace megalith::test

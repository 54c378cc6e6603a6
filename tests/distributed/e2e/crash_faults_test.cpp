// Ranks without memory, and faults in the files of a run that are not its checkpoints. Longer: MEGALITH_CRASH_MINUTES.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"

namespace megalith::test {
namespace {

#ifdef MEGALITH_EXIT_CODES_SURVIVE
// No memory on one of two ranks: all end with exit code 6, for any failing allocation.
class OutOfMemory {
 public:
  OutOfMemory() {
    folder_.make_text();
    EXPECT_EQ(run(command({"--exit-interval", "2"}), folder_).code, 75);
    folder_.copy("kept", "start");
  }

  // Returns false if the run, which continues from step 2, makes fewer than `at` allocations.
  bool fails(const std::string& site, std::int64_t at, int rank, const Words& more = {}) {
    std::filesystem::remove_all(folder_.path("kept"));
    folder_.copy("start", "kept");
    const std::string fault = fmt::format("{}:{}:abort-alloc", site, at);
    const Words flags = {"--allow-faults", "--fault-rank", std::to_string(rank), "--fault", fault};
    const Outcome outcome = run(command(flags + more), folder_);
    EXPECT_TRUE(outcome.code == 6 || outcome.code == 0)
        << fault << " on rank " << rank << ": exit " << outcome.code << "\n"
        << outcome.err;
    EXPECT_TRUE(outcome.code != 6 || outcome.err.find("out of ") != std::string::npos) << fault << "\n" << outcome.err;
    return outcome.code != 0;
  }

  // The checkpoint is still good.
  void finish() const { EXPECT_EQ(run(command({}), folder_).code, 0); }

 private:
  static Words command(const Words& more) {
    Words words = program_on(
        2, "train",
        tiny() + Words{"--data-path", "text", "--save", "kept", "--load", "kept", "--save-interval", "2"} + more);
    for (std::string& word : words) {
      if (word.ends_with("/train")) word = MEGALITH_TRAIN_FAILING_NEW;
    }
    return words;
  }

  Folder folder_;
};

TEST(Crash, OutOfMemoryEndsAllRanksWithExitCode6) {
  OutOfMemory run;
  int failures = 0;
  const int few = one_of(4);
  for (std::int64_t at = 1; at < 200 && run.fails("memory.pool", at, static_cast<int>(at % 2));
       at += (1 + at / 4) * few)
    ++failures;
  EXPECT_GE(failures, 5 / few);
  for (std::int64_t at = 1; at < 100'000'000 && run.fails("memory.new", at, static_cast<int>(at % 2));
       at += (1 + at / 2) * few)
    ++failures;
  EXPECT_GE(failures, 20 / few);
  run.finish();
}

TEST(Crash, LongOutOfMemoryAtRandomAllocations) {
  const char* minutes = std::getenv("MEGALITH_CRASH_MINUTES");
  if (minutes == nullptr) GTEST_SKIP() << "set MEGALITH_CRASH_MINUTES, as tests/soak.sh does";
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(std::atoi(minutes));
  OutOfMemory run;
  std::int64_t last = 1;
  while (run.fails("memory.new", last, 0)) last *= 2;
  std::mt19937_64 random(20261121);
  int failures = 0;
  while (std::chrono::steady_clock::now() < end && !HasFailure())
    failures += run.fails("memory.new", static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(last)),
                          static_cast<int>(random() % 2), random() % 2 == 0 ? Words{} : Words{"--async-save"})
                    ? 1
                    : 0;
  run.finish();
  fmt::print("{} of the first {} allocations failed\n", failures, last);
  EXPECT_GT(failures, 10);
}
#endif

// Tests files next to the checkpoints. An error reports file and operation and ends the run with exit code 3; a metrics
// error only warns. Interrupted or short operations are repeated.
TEST(Crash, FaultsInConfigurationDataAndMetrics) {
  const Folder folder;
  folder.make_text();
  folder.write("run.toml", "seed = 12\n");
  const Words flags =
      tiny() + words(
                   "--data-path text --config run.toml --metrics-jsonl m.jsonl --tensorboard-dir events "
                   "--wandb-project tests --wandb-save-dir events --save kept --load kept");
  ASSERT_EQ(run(program("train", flags + Words{"--exit-interval", "3"}), folder).code, 75);
  folder.copy("kept", "start");
  folder.copy("m.jsonl", "start.jsonl");
  int tried = 0;
  for (const char* scope : {"config", "data.index", "data.tokens", "metrics", "tensorboard", "wandb"}) {
    std::istringstream lines(run(program("train", {"--fault", "list"}), folder).out);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with(std::string(scope) + ".")) continue;
      const std::string site = line.substr(0, line.find(' '));
      for (const std::string kind : {"eio", "enospc", "eintr", "short"}) {
        if (line.find(" " + kind) == std::string::npos || tried++ % one_of(4) != 0) continue;
        std::filesystem::remove_all(folder.path("kept"));
        folder.copy("start", "kept");
        folder.copy("start.jsonl", "m.jsonl");
        std::filesystem::remove_all(folder.path("events"));
        const Outcome outcome =
            run(program("train", flags + Words{"--allow-faults", "--fault", site + ":1:" + kind}), folder);
        const bool fails = kind == "eio" || kind == "enospc";
        EXPECT_EQ(outcome.code, fails ? 3 : 0) << site << " " << kind << "\n" << outcome.err;
        if (fails) {
          EXPECT_THAT(outcome.err, HasSubstr(kind == "eio" ? "(EIO)" : "(ENOSPC)")) << site;
          EXPECT_THAT(outcome.err, HasSubstr("cannot ")) << site;
        } else {
          EXPECT_EQ(folder.read_lines("m.jsonl").size(), 6u) << site << " " << kind;
        }
      }
    }
  }
  EXPECT_GT(tried, 40);
  EXPECT_EQ(folder.read_lines("start.jsonl").size(), 3u);
  // The first write allocated space for later steps; the second is a step's line.
  std::filesystem::remove_all(folder.path("kept"));
  folder.copy("start", "kept");
  folder.copy("start.jsonl", "m.jsonl");
  const Outcome outcome =
      run_ok(program("train", flags + Words{"--allow-faults", "--fault", "metrics.write:2:eio"}), folder);
  EXPECT_THAT(outcome.err, HasSubstr("m.jsonl: Input/output error (EIO)"));
  EXPECT_THAT(outcome.err, HasSubstr("--metrics-jsonl: written again, nothing is lost"));
  EXPECT_EQ(folder.read_lines("m.jsonl").size(), 6u);
}

// A trace is worth less than the run; only a path that is wrong at the start ends it.
TEST(Crash, FaultsInTheTrace) {
  const Folder folder;
  const auto train = [&](const std::string& fault) {
    return run(program("train", tiny_mock() + Words{"--trace", "trace.json", "--profile-step-start", "2",
                                                    "--profile-step-end", "3", "--allow-faults", "--fault", fault}),
               folder);
  };
  EXPECT_EQ(train("trace.create:1:eio").code, 3);
  for (const char* site : {"trace.create:2:eio", "trace.write:1:eio", "trace.sync:1:eio", "trace.rename:1:eio"}) {
    const Outcome outcome = train(site);
    EXPECT_EQ(outcome.code, 0) << site;
    EXPECT_THAT(outcome.warnings(),
                ::testing::ElementsAre(::testing::AllOf(HasSubstr("--trace: cannot "), HasSubstr("(EIO)"))))
        << site;
    EXPECT_FALSE(std::filesystem::exists(folder.path("trace.json"))) << site;
  }
  EXPECT_EQ(train("trace.write:1:short").code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder.path("trace.json")));
}

TEST(Crash, FaultsAreRefusedWithoutLeave) {
  const Folder folder;
  const auto expect = [&](const Words& flags, const std::string& message) {
    expect_train_error(folder, tiny_mock() + flags, 2, message);
  };
  expect(
      {"--fault", "save.begin:1"},
      "--fault: expected --allow-faults with it, got --fault alone; remove --fault, a test aid, or add --allow-faults");
  expect({"--allow-faults", "--fault", "save.begin:0"},
         "--fault save.begin:0: expected SITE:N[:kind] with N from 1 to 10^12, got 0; --fault list shows the sites");
  expect({"--allow-faults", "--fault", "nowhere:1"},
         "--fault nowhere:1: expected SITE:N[:kind], got an unknown site; --fault list shows the sites");
}

}  // namespace
}  // namespace megalith::test

// Runs of --wandb-project judged by check_wandb.py: the client of Weights & Biases uploads them to a local server.
// Skipped if ${PYTHON:-python3} has no wandb.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"

namespace megalith::test {
namespace {

namespace fs = std::filesystem;

std::string interpreter() {
  const char* const variable = std::getenv("PYTHON");
  return variable != nullptr ? variable : "python3";
}

bool has_wandb() { return std::system((interpreter() + " -c 'import wandb.cli' >/dev/null 2>&1").c_str()) == 0; }

Words runs_in(const Folder& folder, const std::string& name) {
  Words runs;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path(name + "/wandb")))
    runs.push_back(name + "/wandb/" + entry.path().filename().string());
  std::ranges::sort(runs);
  return runs;
}

const Words kWandb = {"--wandb-project", "tests", "--wandb-exp-name", "a \"run\" \xc3\xa9", "--wandb-entity", "team"};

// "N steps, N values, exit code N" as the client uploads the run.
std::string uploaded(const Folder& folder, const std::string& metrics, const std::string& code,
                     const std::string& run) {
  const Words command = {"/usr/bin/env", interpreter(), MEGALITH_SOURCE_DIR "/tests/distributed/e2e/check_wandb.py",
                         metrics,        code,          "team",
                         "tests",        kWandb[3],     run};
  const Outcome outcome = megalith::test::run(command, folder);
  return outcome.code == 0 ? outcome.out : outcome.err;
}

TEST(Wandb, TheClientUploadsEachStep) {
  const Folder folder;
  folder.make_text();
  const Words experts = words("--num-experts 4 --swiglu --disable-bias-linear --save kept --load kept");
  const Words flags = stateful() + experts + kWandb + Words{"--metrics-jsonl", "m.jsonl"};
  ASSERT_EQ(run(program_on(2, "train", flags + Words{"--exit-interval", "4"}), folder).code, 75);
  const Words runs = runs_in(folder, "kept");
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_TRUE(fs::exists(folder.path(runs[0] + "/run-" + runs[0].substr(runs[0].rfind('-') + 1) + ".wandb")));
  if (!has_wandb()) GTEST_SKIP() << interpreter() << " has no wandb; PYTHON names another interpreter";
  EXPECT_THAT(uploaded(folder, "m.jsonl", "75", runs[0]), StartsWith("4 steps, "));
  // A resumed run has a separate folder.
  run_ok(program("train", flags + Words{"--metrics-jsonl", "rest.jsonl"}), folder);
  Words all = runs_in(folder, "kept");
  ASSERT_EQ(all.size(), 2u);
  std::erase(all, runs[0]);
  EXPECT_THAT(uploaded(folder, "rest.jsonl", "0", all[0]), StartsWith("2 steps, "));
}

TEST(Wandb, AKilledRunKeepsItsSteps) {
  const Folder folder;
  const Words flags =
      tiny_mock() + kWandb + words("--wandb-save-dir runs --metrics-jsonl m.jsonl --train-iters 100000");
  {
    Process process(program("train", flags), folder);
    ASSERT_TRUE(process.wait_for_output("step 100/"));
    process.signal(SIGKILL);
    EXPECT_EQ(process.finish().code, 137);
  }
  const Words runs = runs_in(folder, "runs");
  ASSERT_EQ(runs.size(), 1u);
  if (!has_wandb()) GTEST_SKIP() << interpreter() << " has no wandb; PYTHON names another interpreter";
  EXPECT_THAT(uploaded(folder, "m.jsonl", "none", runs[0]), HasSubstr(" values, exit code 1"));
}

TEST(Wandb, AFolderThatCannotBeMadeIsAnError) {
  const Folder folder;
  folder.write("file", "");
  expect_error(folder, program("train", tiny_mock() + kWandb + Words{"--wandb-save-dir", "file"}), 3,
               HasSubstr("--wandb-project file: cannot "));
  expect_train_error(folder, tiny_mock() + Words{"--wandb-entity", "team"}, 2,
                     "--wandb-entity and --wandb-project: expected --wandb-entity only with --wandb-project, got "
                     "--wandb-entity alone; use --wandb-project, or remove --wandb-entity");
}

}  // namespace
}  // namespace megalith::test

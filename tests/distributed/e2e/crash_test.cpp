// Tests a training run that is killed at every step of a checkpoint's commit, on any rank, and then continues. Every
// logged loss and the final weights equal those of an uninterrupted run. Faults in other files are tested too. Longer:
// MEGALITH_CRASH_MINUTES (tests/soak.sh) continues with random sites, ranks and moments.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "tests/distributed/e2e/program.h"
#include "tests/support/matchers.h"
#include "tests/support/tier.h"

namespace megalith::test {
namespace {

constexpr int kSteps = 800;
constexpr int kKilled = 128 + SIGKILL;

// One run with everything that has a state, and the same run in pieces.
class Crashes {
 public:
  struct Spec {
    int steps = kSteps;
    int ranks = 2;
    Words layout = {};  // flags
  };
  Crashes() : Crashes(Spec{}) {}
  explicit Crashes(Spec spec) : spec_(std::move(spec)) {
    folder_.make_text();
    const Outcome whole = run_ok(program_on(spec_.ranks, "train", flags("whole") + Words{"--save", "whole"}), folder_);
    whole_ = steps_of(folder_.read_lines("whole.jsonl"));
    EXPECT_EQ(whole_.size(), static_cast<std::size_t>(spec_.steps));
    list_ = run(program("train", {"--fault", "list"}), folder_).out;
  }

  Words sites(const std::string& beginning) const {
    Words names;
    std::istringstream lines(list_);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(beginning)) names.push_back(line.substr(0, line.find(' ')));
    }
    return names;
  }

  // Runs until rank `rank` is killed at the site; -1: each that gets there. False if none did.
  bool kill_at(const std::string& site, int at, int rank, const Words& more = {}) {
    const Words fault = {"--allow-faults", "--fault-rank", std::to_string(rank), "--fault",
                         fmt::format("{}:{}:kill", site, at)};
    const Outcome outcome = run(command() + fault + more, folder_);
    compare(fmt::format("{} on rank {}", site, rank));
    kills_ += outcome.code == kKilled ? 1 : 0;
    fmt::print("{} kills, {} on rank {}\n", kills_, site, rank);
    std::fflush(stdout);
    EXPECT_TRUE(outcome.code == kKilled || outcome.code == 0) << site << ": exit " << outcome.code << "\n"
                                                              << outcome.err;
    return outcome.code == kKilled;
  }

  // Kills a rank so long after all have started.
  void kill_after(std::chrono::milliseconds time, unsigned choice, const Words& more = {}) {
    Process process(command() + more, folder_);
    const auto count = static_cast<std::size_t>(spec_.ranks), rank = choice % count;
    std::vector<pid_t> ranks;
    const auto all_run = [&] {
      return ranks.size() == count && std::all_of(ranks.begin(), ranks.end(), [](pid_t pid) { return pid > 0; });
    };
    for (int i = 0; i < 6000 && !all_run(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ranks = process.ranks();
    }
    ASSERT_TRUE(all_run());
    std::this_thread::sleep_for(time);
    kills_ += ::kill(ranks[rank], SIGKILL) == 0 ? 1 : 0;
    process.finish();
    compare(fmt::format("a kill after {} ms", time.count()));
    fmt::print("{} kills, rank {} after {} ms\n", kills_, rank, time.count());
    std::fflush(stdout);
  }

  void damage_newest() {
    std::string newest;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path("parts"))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step_") && name.find('.') == std::string::npos) newest = std::max(newest, name);
    }
    folder_.overwrite("parts/" + newest + "/rank_0001_of_0002.safetensors", 5000, "damage");
  }
  // Flags of a run that returns to the oldest checkpoint, and first saves after `steps` steps.
  Words back(int steps) const {
    std::string oldest = "step_9999999";
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path("parts"))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step_") && name.find('.') == std::string::npos) oldest = std::min(oldest, name);
    }
    const int step = std::stoi(oldest.substr(5));
    return {"--ckpt-step", std::to_string(step), "--save-interval", std::to_string(step + steps)};
  }
  void leave_stale_folder() {
    std::filesystem::create_directories(folder_.path("parts/step_0000009.tmp-dead"));
    folder_.write("parts/step_0000009.tmp-dead/file", "x");
  }
  void leave_unreadable() {
    std::filesystem::create_directories(folder_.path("parts/step_0000000"));
    folder_.write("parts/step_0000000/manifest.json", "x");
  }
  void leave_latest() { folder_.write("parts/LATEST.tmp", "x"); }
  void restart() {
    std::filesystem::remove_all(folder_.path("parts"));
    std::filesystem::remove(folder_.path("parts.jsonl"));
  }

  void finish(const Words& more = {}) {
    const Outcome rest = run_ok(command() + Words{"--save-interval", "100"} + more, folder_);
    EXPECT_EQ(steps_of(folder_.read_lines("parts.jsonl")), whole_);
    expect_same_tensors(folder_, "parts", "whole", spec_.steps);
  }

  std::size_t steps_done() const { return folder_.read_lines("parts.jsonl").size(); }
  int kills() const { return kills_; }

 private:
  Words flags(const std::string& name) const {
    return stateful() + spec_.layout + Words{"--eval-interval", "50",
                                             "--log-interval",  "1000",
                                             "--train-iters",   std::to_string(spec_.steps),
                                             "--metrics-jsonl", name + ".jsonl"};
  }
  Words command() const {
    return program_on(
        spec_.ranks, "train",
        flags("parts") + Words{"--save", "parts", "--load", "parts", "--save-interval", "1", "--keep-last", "2"});
  }

  // Compares all logged values with those of the uninterrupted run at the same steps.
  void compare(const std::string& after) const {
    const Words lines = folder_.read_lines("parts.jsonl");
    const Words steps = steps_of(lines);
    for (std::size_t i = 0; i < steps.size() && i < whole_.size(); ++i) {
      const bool torn = i + 1 == steps.size() && !lines[i].ends_with("}");
      EXPECT_TRUE(torn || steps[i] == whole_[i])
          << "after " << after << ": " << steps[i] << " instead of " << whole_[i];
    }
  }

  Spec spec_;
  Folder folder_;
  Words whole_;
  std::string list_;
  int kills_ = 0;
};

#ifdef MEGALITH_EXIT_CODES_SURVIVE
// Passes through the site until the kill: two if a save passes it once, so that each run makes progress.
int time_of(const std::string& site) {
  for (const char* once :
       {"save.planned", "save.prepared", "save.shards_written", "save.commit", "save.parent", "save.folder",
        "save.manifest", "save.state", "save.latest.c", "save.latest.w", "save.latest.s"}) {
    if (site.starts_with(once)) return 2;
  }
  return 1;
}

TEST(Crash, KilledAtEverySiteOnEachRankAndResumed) {
  Crashes crashes;
  std::set<std::string> killed;
  int asked = 0;
  const auto kill = [&](const std::string& site, int rank, const Words& more = {}) {
    if (HasFailure() || (asked++ > 8 && asked % one_of(18) != 0)) return;  // the first make checkpoints
    EXPECT_TRUE(crashes.kill_at(site, time_of(site), rank, more)) << site << " on rank " << rank << " was not reached";
    killed.insert(site);
  };
  kill("save.root.mkdir", -1);  // on the first rank to arrive
  kill("save.root.sync", -1);
  for (const std::string& site : crashes.sites("save.")) {
    if (killed.contains(site) || site.starts_with("save.cleanup") || site.starts_with("save.aside")) continue;
    if (site.starts_with("save.stale")) crashes.leave_stale_folder();
    if (site == "save.latest.remove") crashes.leave_latest();
    if (site.starts_with("save.branch")) crashes.leave_unreadable();
    kill(site, 0);
  }
  for (const std::string& site : crashes.sites("load.")) kill(site, 0);
  for (const std::string& site : crashes.sites("step.")) kill(site, 0);
  for (const std::string& site : crashes.sites("save.cleanup")) kill(site, 0, {"--fault", "save.state.write:1:eio"});
  kill("save.commit.rename", 0, crashes.back(1));  // between the two renames that replace a checkpoint
  for (const std::string& site : crashes.sites("save.aside")) kill(site, 0, crashes.back(2));
  crashes.damage_newest();
  kill("save.commit.rename", 0);
  for (const char* site :
       {"save.begin", "save.planned", "save.prepared", "save.shard.open", "save.shard.create", "save.shard.write",
        "save.shard.sync", "save.shard.close", "save.shards_written", "save.committed", "save.end", "load.begin",
        "load.state.read", "load.verify.read", "load.tensor.read", "load.end", "step.begin", "step.end"}) {
    kill(site, 1);
  }
  std::mt19937 random(20261121);
  for (int i = 0; i < 5 / one_of(2); ++i)
    crashes.kill_after(std::chrono::milliseconds(random() % 400), static_cast<unsigned>(random()));
  EXPECT_GE(killed.size(), 60u / static_cast<unsigned>(one_of(18)));
  EXPECT_LT(crashes.steps_done(), static_cast<std::size_t>(kSteps));
  crashes.finish();
  RecordProperty("kills", crashes.kills());
}

// The same with a thread of each rank that writes concurrently with the steps.
TEST(Crash, KilledDuringAsyncSavesAndResumed) {
  const Words async = {"--async-save"};
  Crashes crashes({.steps = 200});
  int asked = 0;
  const auto kill = [&](const std::string& site, int rank) {
    if (HasFailure() || asked++ % one_of(5) != 0) return;
    EXPECT_TRUE(crashes.kill_at(site, 2, rank, async)) << site << " on rank " << rank << " was not reached";
  };
  for (const char* site : {"async_save.copied", "save.begin", "save.prepared", "save.shard.write", "save.shard.sync",
                           "save.shards_written", "save.end", "step.begin", "step.end"}) {
    kill(site, 0);
    kill(site, 1);
  }
  for (const char* site : {"save.temporary.mkdir", "save.state.write", "save.manifest.rename", "save.folder.sync",
                           "save.commit.rename", "save.parent.sync", "save.latest.rename", "save.prune.rename"})
    kill(site, 0);
  std::mt19937 random(20261121);
  for (int i = 0; i < 3; ++i)
    crashes.kill_after(std::chrono::milliseconds(random() % 400), static_cast<unsigned>(random()), async);
  crashes.finish(async);
  RecordProperty("kills", crashes.kills());
}

const Words kTensorParallel = {"--tensor-model-parallel-size", "2", "--sequence-parallel"};

// Eight ranks in two pipeline stages, with `parallelism` within each. MEGALITH_LAYOUT_KILLS (tests/soak.sh): how many
// kills.
void kill_eight_ranks(const Words& parallelism) {
  constexpr int kFewSteps = 120;
  const char* wanted = std::getenv("MEGALITH_LAYOUT_KILLS");
  const int kills = wanted == nullptr ? 4 : std::atoi(wanted);
  Crashes crashes(
      {.steps = kFewSteps,
       .ranks = 8,
       .layout = Words{"--pipeline-model-parallel-size", "2", "--overlap-grad-reduce", "--overlap-param-gather"} +
                 parallelism});
  std::mt19937 random = random_from_seed();
  Words sites;
  for (const std::string& site : crashes.sites("save.")) {
    const auto begins = [&site](const char* text) { return site.starts_with(text); };
    const bool rare = begins("save.root") || begins("save.stale") || begins("save.cleanup") || begins("save.aside") ||
                      begins("save.branch") || begins("save.latest.remove");
    if (!rare) sites.push_back(site);
  }
  while (crashes.kills() < kills && !testing::Test::HasFailure()) {
    const auto choice = static_cast<unsigned>(random());
    if (crashes.kills() % 2 == 0) {
      crashes.kill_at(sites[choice % sites.size()], 2, -1);
    } else {
      crashes.kill_after(std::chrono::milliseconds(random() % 2000), choice);
    }
    if (crashes.steps_done() < kFewSteps) continue;
    crashes.finish();
    crashes.restart();
  }
  crashes.finish();
  testing::Test::RecordProperty("kills", crashes.kills());
}

TEST(Crash, KilledInEveryParallelismAndResumed) {
  kill_eight_ranks(kTensorParallel + Words{"--use-distributed-optimizer"});
}

TEST(Crash, KilledWithShardedUnitsAndResumed) {
  if (one_of(2) > 1) GTEST_SKIP() << "in the full tier";
  kill_eight_ranks(kTensorParallel + Words{"--data-parallel-sharding-strategy", "optim_grads_params"});
}

Words experts() {
  return llama() +
         words(
             "--num-experts 4 --moe-ffn-hidden-size 16 --moe-router-score-function sigmoid "
             "--moe-router-enable-expert-bias --moe-aux-loss-coeff 0.01 --moe-shared-expert-intermediate-size 16");
}

// Experts' shards lie on other ranks than those of the rest; the bias of their choice is in the checkpoint.
TEST(Crash, KilledWithExpertsAndResumed) {
  if (one_of(2) > 1) GTEST_SKIP() << "in the full tier";
  kill_eight_ranks(kTensorParallel + experts() + Words{"--data-parallel-sharding-strategy", "optim_grads_params"});
}

// Data parallelism over four ranks with experts sharded over pairs: each expert is on two ranks, and all other
// parameters are on four. Exchanges run next to another microbatch.
TEST(Crash, KilledWithExpertsOnOtherRanksAndResumed) {
  if (one_of(2) > 1) GTEST_SKIP() << "in the full tier";
  kill_eight_ranks(experts() +
                   words("--expert-model-parallel-size 2 --moe-shared-expert-overlap --use-distributed-optimizer "
                         "--cuda-graph-impl local --overlap-moe-expert-parallel-comm --pipeline-schedule zb-v "
                         "--pipeline-model-parallel-layout E|t|t|L"));
}

// With graphs at whose events copies to the host start, of rows that other ranks sent among them.
TEST(Crash, KilledWithActivationsOnTheHostAndResumed) {
  if (one_of(2) > 1) GTEST_SKIP() << "in the full tier";
  kill_eight_ranks(experts() + Words{"--expert-model-parallel-size", "2", "--data-parallel-sharding-strategy",
                                     "optim_grads_params", "--cuda-graph-impl", "local",
                                     "--fine-grained-activation-offloading", "--min-offload-bytes", "0",
                                     "--offload-modules", "attn_norm", "core_attn", "fused_group_mlp"});
}

TEST(Crash, LongRandomKills) {
  const char* minutes = std::getenv("MEGALITH_CRASH_MINUTES");
  if (minutes == nullptr) GTEST_SKIP() << "set MEGALITH_CRASH_MINUTES, as tests/soak.sh does";
  std::mt19937 random = random_from_seed();
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(std::atoi(minutes));
  Crashes crashes;
  Words sites = crashes.sites("save.") + crashes.sites("load.") + crashes.sites("step.") + crashes.sites("metrics.");
  sites.push_back("async_save.copied");
  while (std::chrono::steady_clock::now() < end && !testing::Test::HasFailure()) {
    const Words more = random() % 2 == 0 ? Words{} : Words{"--async-save"};
    if (random() % 3 == 0) {
      crashes.kill_after(std::chrono::milliseconds(random() % 2000), static_cast<unsigned>(random()), more);
    } else {
      crashes.kill_at(sites[random() % sites.size()], static_cast<int>(1 + random() % 4),
                      static_cast<int>(random() % 2), more);
    }
    if (crashes.steps_done() < static_cast<std::size_t>(kSteps)) continue;
    crashes.finish(more);
    crashes.restart();
  }
  crashes.finish();
  fmt::print("{} kills\n", crashes.kills());
  EXPECT_GT(crashes.kills(), 10);
}
#endif

}  // namespace
}  // namespace megalith::test

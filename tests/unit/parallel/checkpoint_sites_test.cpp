// Every call of every fault site of saving and loading fails once, with each possible fault.
#include <gtest/gtest.h>

#include <set>

#include "core/base/files/fault.h"
#include "tests/support/tier.h"
#include "tests/unit/parallel/checkpoint_support.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

// A folder in some state, and whether a checkpoint of step 1 is in it.
struct Scenario {
  const char* name;
  std::function<void(const std::string& save)> prepare;
  std::int64_t before;  // step of the newest checkpoint in it, -1: none
  bool goes_back = false;
};

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> kAll = {
      {"a new folder", [](const std::string&) {}, -1},
      {"an older checkpoint, one too many, and what dead saves left",
       [](const std::string& save) {
         EXPECT_TRUE(save_alone(save, 1).saved);
         fs::copy(save + "/step_0000001", save + "/step_0000000", fs::copy_options::recursive);
         fs::create_directory(save + "/step_0000002.tmp-dead");
         write_bytes(save + "/step_0000002.tmp-dead/file", "x");
         write_bytes(save + "/LATEST.tmp", "x");
       },
       1},
      {"the same step saved before",
       [](const std::string& save) {
         EXPECT_TRUE(save_alone(save, 1).saved);
         EXPECT_TRUE(save_alone(save, 2).saved);
       },
       2},
      {"a run that went back from step 3 to step 1",
       [](const std::string& save) {
         CheckpointHistory history;
         for (const std::int64_t step : {1, 2, 3})
           EXPECT_TRUE(save_shared(one_rank(), save, step, 0, nullptr, &history).saved);
       },
       3, true},
  };
  return kAll;
}

class CheckpointSites : public testing::Test {
 protected:
  std::string fresh(const Scenario& scenario) {
    fs::remove_all(folder_.path("top"));
    const std::string save = folder_.path("top/save");
    scenario.prepare(save);
    return save;
  }
  // Saves step 2 after the scenario.
  static SaveResult save(const Scenario& scenario, const std::string& folder) {
    if (!scenario.goes_back) return save_alone(folder, 2, 2);
    CheckpointHistory history;
    EXPECT_TRUE(find_checkpoint({.directory = folder, .step = 1, .history = &history}));
    history.known.clear();
    return save_shared(one_rank(), folder, 2, 2, nullptr, &history);
  }
  TestFolder folder_;
};

bool must_succeed(FaultKind kind) { return kind == FaultKind::kEintr || kind == FaultKind::kShort; }

const std::vector<FaultKind> kKinds = {FaultKind::kEio, FaultKind::kEnospc, FaultKind::kEintr, FaultKind::kShort};

std::vector<FaultRequest> requests_at(const std::string& site) {
  std::vector<FaultRequest> requests;
  for (const FaultKind kind : kKinds) {
    for (const int at : {1, 2}) {
      try {
        requests.push_back(parse_fault(site + ":" + std::to_string(at) + ":" + std::string(name_of(kind))));
      } catch (const Error&) {  // cannot happen there
      }
    }
  }
  return requests;
}

TEST_F(CheckpointSites, SaveSurvivesEveryFault) {
  std::set<std::string> all;
  int struck = 0, asked = 0;
  testing::internal::CaptureStderr();  // warnings about moved files
  for (const Scenario& scenario : scenarios()) {
    std::set<std::string> reached;
    {
      const std::string save = fresh(scenario);
      const Faults recorded(std::vector<FaultRequest>{}, &reached);
      EXPECT_TRUE(this->save(scenario, save).saved);
    }
    for (const std::string& site : reached) {
      if (!site.starts_with("save.")) continue;
      for (const FaultRequest& request : requests_at(site)) {
        if (asked++ % test::one_of(3) != 0) continue;
        const std::string save = fresh(scenario);
        SaveResult result;
        {
          const Faults faults({request});
          result = this->save(scenario, save);
          if (faults_fired() == 0) continue;  // no second time
        }
        ++struck;
        const std::string where = std::string(scenario.name) + ": " + site + " " + std::string(name_of(request.kind)) +
                                  " at " + std::to_string(request.at) + ": " + result.message;
        if (must_succeed(request.kind)) {
          EXPECT_TRUE(result.saved && result.message.empty()) << where;
        } else if (!result.message.empty()) {
          EXPECT_NE(result.message.find(request.kind == FaultKind::kEio ? "(EIO)" : "(ENOSPC)"), std::string::npos)
              << where;
          EXPECT_NE(result.message.find("cannot "), std::string::npos) << where;
          EXPECT_NE(result.message.find(folder_.path()), std::string::npos) << where;
        } else {  // only a look at older checkpoints may skip it
          const bool looks = site == "save.prune.open" || site == "save.prune.read" || site.starts_with("save.branch");
          EXPECT_TRUE(looks || site == "save.root.space") << where;
        }
        // A checkpoint that has its name, but perhaps not durably, counts as not saved, and is a good one all the same.
        const bool there = result.saved || (site == "save.parent.sync" && !must_succeed(request.kind));
        EXPECT_EQ(load_alone(save), there ? 2 : scenario.before) << where;
        CheckpointHistory history;  // for the next run
        const bool loads = find_checkpoint({.directory = save, .history = &history}).has_value();
        EXPECT_TRUE(loads || scenario.before < 0) << where;
        const SaveResult next = save_shared(one_rank(), save, 4, 2, nullptr, &history);
        EXPECT_TRUE(next.saved && next.message.empty()) << where << "; then " << next.message;
        EXPECT_EQ(load_alone(save), 4) << where;
      }
    }
    all.insert(reached.begin(), reached.end());
  }
  testing::internal::GetCapturedStderr();
  EXPECT_GT(struck, 300 / test::one_of(3));
  // save.cleanup has its own test.
  for (const std::string& site : fault_sites()) {
    const bool counts = site.starts_with("save.") && !site.starts_with("save.cleanup");
    EXPECT_TRUE(!counts || all.contains(site)) << site;
  }
}

// A disk that fails or is full from some call on. All saves fail or succeed and the older checkpoints stay; after a
// repair, saving continues.
TEST_F(CheckpointSites, FaultsThatLast) {
  int failed = 0, saved = 0, asked = 0;
  testing::internal::CaptureStderr();
  for (const std::string& site : fault_sites()) {
    if (!site.starts_with("save.")) continue;
    for (const char* form : {":1+:eio", ":3+:enospc"}) {
      FaultRequest request;
      try {
        request = parse_fault(site + form);
      } catch (const Error&) {  // cannot happen there
        continue;
      }
      if (asked++ % test::one_of(3) != 0) continue;
      const std::string save = fresh(scenarios()[3]), where = site + form;
      CheckpointHistory history;
      EXPECT_TRUE(find_checkpoint({.directory = save, .step = 1, .history = &history}));
      std::int64_t newest = 3;
      {
        const Faults faults({request});
        for (const std::int64_t step : {2, 4, 5}) {
          const SaveResult result = save_shared(one_rank(), save, step, 2, nullptr, &history);
          if (result.saved) newest = step;
          ++(result.saved ? saved : failed);
          EXPECT_TRUE(result.saved || !result.message.empty()) << where;
          const bool named = site == "save.parent.sync" && !result.saved;  // good, but not known to be durable
          if (named) newest = step;
          EXPECT_EQ(load_alone(save), newest) << where << ": " << result.message;
        }
      }
      const SaveResult next = save_shared(one_rank(), save, 6, 2, nullptr, &history);
      EXPECT_TRUE(next.saved && next.message.empty()) << where << ": " << next.message;
      EXPECT_EQ(load_alone(save), 6) << where;
      if (HasFailure()) break;
    }
  }
  testing::internal::GetCapturedStderr();
  EXPECT_GT(failed, 60 / test::one_of(3));
  EXPECT_GT(saved, 60 / test::one_of(3));
}

TEST_F(CheckpointSites, FaultsThatLastWhileLoading) {
  const std::string save = fresh(scenarios()[3]);
  for (const std::string& site : fault_sites()) {
    if (!site.starts_with("load.") || site.find('.', 5) == std::string::npos) continue;
    for (const char* form : {":1+:eio", ":4+:eio"}) {
      testing::internal::CaptureStderr();
      std::string message;
      {
        const Faults faults({parse_fault(site + form)});
        try {
          EXPECT_EQ(load_alone(save), 3) << site << form;  // fewer calls
        } catch (const Error& error) {
          message = error.what();
          EXPECT_TRUE(error.code() == ExitCode::kNoCheckpoint || error.code() == ExitCode::kFileIo) << site << form;
          EXPECT_NE(message.find("(EIO)"), std::string::npos) << message;
        }
      }
      testing::internal::GetCapturedStderr();
      EXPECT_TRUE(!message.empty() || std::string(form) == ":4+:eio") << site << form;
    }
  }
  EXPECT_EQ(load_alone(save), 3);
}

TEST_F(CheckpointSites, WhatCannotBeRemovedEndsNoSaving) {
  const std::string save = fresh(scenarios()[1]);
  const Faults faults({parse_fault("save.stale.remove:1+:eio"), parse_fault("save.prune.remove:1+:eio")});
  for (const std::int64_t step : {2, 3, 4}) {
    const SaveResult result = save_alone(save, step, 1);
    EXPECT_TRUE(result.saved) << result.message;
    EXPECT_NE(result.message.find("cannot remove " + save + "/step_0000002.tmp-dead/file: "), std::string::npos);
    EXPECT_NE(result.message.find("/manifest.json: "), std::string::npos) << result.message;  // pruned checkpoint
    EXPECT_EQ(load_alone(save), step);
  }
}

// Only one file of a tree stays: the others go, and free their space.
TEST_F(CheckpointSites, TheRestOfWhatCannotBeRemovedGoes) {
  const std::string save = fresh(scenarios()[0]);
  ASSERT_TRUE(save_alone(save, 1).saved);
  const Faults faults({parse_fault("save.prune.remove:1:eio")});
  ASSERT_TRUE(save_alone(save, 2, 1).saved);
  int left = 0;
  for (const auto& entry : fs::recursive_directory_iterator(save)) {
    if (entry.is_regular_file() && entry.path().string().find(".tmp-") != std::string::npos) {
      EXPECT_EQ(entry.path().filename(), "manifest.json");
      ++left;
    }
  }
  EXPECT_EQ(left, 1);
}

TEST_F(CheckpointSites, AFullDiskIsFreedBeforeTheSave) {
  const std::string save = fresh(scenarios()[0]);
  CheckpointHistory history;
  const auto save_step = [&](std::int64_t step, int keep_last) {
    return save_shared(one_rank(), save, step, keep_last, nullptr, &history);
  };
  for (const std::int64_t step : {1, 2, 3, 4}) ASSERT_TRUE(save_step(step, 0).saved);
  {
    const Faults faults({parse_fault("save.root.space:1:enospc"), parse_fault("save.shard.write:1:enospc")});
    EXPECT_FALSE(save_step(5, 2).saved);  // space was freed; otherwise only a save that succeeds prunes
    EXPECT_EQ(faults_fired(), 2);
  }
  EXPECT_EQ(names_in(save), (std::vector<std::string>{"LATEST", "step_0000003", "step_0000004"}));
  // A damaged checkpoint does not count: the newest one that verifies stays, however little space there is.
  std::string bytes = read_bytes(save + "/step_0000004/state.json");
  write_bytes(save + "/step_0000004/state.json", bytes + " ");
  const Faults faults({parse_fault("save.root.space:1+:enospc")});
  const SaveResult full = save_step(5, 1);
  EXPECT_FALSE(full.saved);
  EXPECT_NE(full.message.find("free space in " + save + ": expected at least "), std::string::npos) << full.message;
  EXPECT_EQ(names_in(save), (std::vector<std::string>{"LATEST", "step_0000003", "step_0000004"}));
}

TEST_F(CheckpointSites, AFailedSaveThatCannotBeCleanedUp) {
  for (const char* operation : {"open", "list", "remove"}) {
    const std::string save = fresh(scenarios()[1]);
    {
      const Faults faults(
          {parse_fault("save.shard.write:2:enospc"), parse_fault(std::string("save.cleanup.") + operation + ":1:eio")});
      const SaveResult result = save_alone(save, 2, 1);
      EXPECT_FALSE(result.saved);
      EXPECT_NE(result.message.find("; and the temporary directory stays: "), std::string::npos) << result.message;
      EXPECT_EQ(faults_fired(), 2);
    }
    EXPECT_EQ(load_alone(save), 1);
    EXPECT_TRUE(save_alone(save, 3, 1).saved);
    EXPECT_EQ(names_in(save), (std::vector<std::string>{"LATEST", "step_0000003"}));
  }
}

TEST_F(CheckpointSites, LoadFallsBackOrSaysWhy) {
  std::set<std::string> reached;
  const std::string save = folder_.path("save");
  ASSERT_TRUE(save_alone(save, 1).saved);
  ASSERT_TRUE(save_alone(save, 2).saved);
  {
    const Faults recorded(std::vector<FaultRequest>{}, &reached);
    EXPECT_EQ(load_alone(save), 2);
  }
  int struck = 0;
  for (const std::string& site : reached) {
    for (const FaultRequest& request : requests_at(site)) {
      const std::string where = site + " " + std::string(name_of(request.kind)) + " at " + std::to_string(request.at);
      const Faults faults({request});
      testing::internal::CaptureStderr();
      std::int64_t step = -1;
      std::string message;
      try {
        step = load_alone(save);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kFileIo) << where;
        message = error.what();
      }
      message += testing::internal::GetCapturedStderr();
      if (faults_fired() == 0) continue;
      ++struck;
      if (must_succeed(request.kind)) {
        EXPECT_EQ(step, 2) << where;
        continue;
      }
      // Errors in the folder itself and in verified tensors end the load; others fall back to the older checkpoint.
      const bool is_error =
          site.starts_with("load.root") || site.starts_with("load.tensor") || site == "load.manifest.list";
      // The second manifest that is read is the older checkpoint's.
      const bool is_older = site == "load.manifest.read" && request.at == 2;
      EXPECT_EQ(step, is_error ? -1 : is_older ? 2 : 1) << where;
      if (is_older) continue;
      EXPECT_NE(message.find(request.kind == FaultKind::kEio ? "(EIO)" : "(ENOSPC)"), std::string::npos) << message;
      EXPECT_NE(message.find(save), std::string::npos) << message;
    }
  }
  EXPECT_GT(struck, 30);
  for (const std::string& site : fault_sites()) {
    // The points at the end of loading are the trainer's.
    const bool counts = site.starts_with("load.") && site != "load.end";
    EXPECT_TRUE(!counts || reached.contains(site)) << site;
  }
  EXPECT_EQ(load_alone(save), 2);  // nothing was changed
}

TEST_F(CheckpointSites, OutOfMemoryIsNotTakenForADamagedFile) {
  const std::string save = folder_.path("save");
  ASSERT_TRUE(save_alone(save, 1).saved);
  ASSERT_TRUE(save_alone(save, 2).saved);
  for (const std::string& site : fault_sites()) {
    if (!site.starts_with("load.") || site == "load.end") continue;
    const Faults faults({parse_fault(site + ":1:abort-alloc")});
    EXPECT_THROW(load_alone(save), std::bad_alloc) << site;
  }
  EXPECT_EQ(load_alone(save), 2);
  for (const char* site : {"save.shard.write", "save.manifest.sync", "save.begin"}) {
    const Faults faults({parse_fault(std::string(site) + ":1:abort-alloc")});
    EXPECT_THROW(save_alone(save, 3), std::bad_alloc) << site;
    EXPECT_EQ(load_alone(save), 2) << site;
  }
}

}  // namespace
}  // namespace megalith

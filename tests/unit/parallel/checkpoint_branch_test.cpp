// A run that returns to an older checkpoint: the newest one, and those that stay or are moved aside.
#include <gtest/gtest.h>

#include <set>

#include "core/base/files/fault.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/manifest.h"
#include "tests/unit/parallel/checkpoint_support.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

using Names = std::vector<std::string>;

// A run as in the trainer: the checkpoint loaded or saved last is the parent of its next one.
class SavingRun {
 public:
  explicit SavingRun(std::string save) : save_(std::move(save)) {}
  SavingRun(std::string save, std::int64_t step) : save_(std::move(save)) { load(save_, step); }

  void load(const std::string& folder, std::int64_t step = 0) {
    const auto found = find_checkpoint(
        {.directory = folder, .step = step == 0 ? std::nullopt : std::optional(step), .history = &history_});
    loaded_ = found ? found->state().step : -1;
  }
  SaveResult try_save(std::int64_t step, int keep_last = 0, const FileObserver* observer = nullptr) {
    return save_shared(one_rank(), save_, step, keep_last, observer, &history_);
  }
  // Standard error of it.
  std::string save(std::int64_t step, int keep_last = 0) {
    testing::internal::CaptureStderr();
    const SaveResult result = try_save(step, keep_last);
    EXPECT_TRUE(result.saved && result.message.empty()) << result.message;
    return testing::internal::GetCapturedStderr();
  }
  std::int64_t loaded() const { return loaded_; }
  CheckpointHistory& history() { return history_; }

 private:
  std::string save_;
  CheckpointHistory history_;
  std::int64_t loaded_ = -1;
};

class Branches : public testing::Test {
 protected:
  // Saves 1, 2 and 3 by one run.
  void SetUp() override {
    SavingRun run(save_);
    for (const std::int64_t step : {1, 2, 3}) EXPECT_EQ(run.save(step), "");
    ASSERT_EQ(load_alone(save_), 3);
  }
  Names checkpoints() const {
    Names names = names_in(save_);
    std::erase(names, "LATEST");
    return names;
  }
  // Its bytes show which save wrote it.
  std::string manifest(const std::string& name) const { return read_bytes(save_ + "/" + name + "/manifest.json"); }
  void flip(const std::string& file) const {
    std::string bytes = read_bytes(save_ + "/" + file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_bytes(save_ + "/" + file, bytes);
  }

  TestFolder folder_;
  const std::string save_ = folder_.path("save");
};

TEST_F(Branches, ACheckpointKnowsItsParent) {
  const auto lineage = [&](std::int64_t step, CheckpointId& id) {
    id.step = step;
    return lineage_from_text(manifest(checkpoint_name(step)), id, "m").value();
  };
  CheckpointId first, second, third;
  EXPECT_EQ(lineage(1, first).parent, std::nullopt);
  EXPECT_EQ(lineage(2, second).parent, first);
  EXPECT_EQ(lineage(3, third).parent, second);
  EXPECT_EQ(lineage(3, third).serial, 3);
  const Manifest whole = manifest_from_text(manifest("step_0000003"), "m");
  EXPECT_EQ(whole.hash, third.hash);
  EXPECT_EQ(whole.lineage->parent, second);
  CheckpointId wrong{.step = 4, .hash = {}};
  EXPECT_ERROR(ExitCode::kFormat, "m: lineage: step: expected 4, got 3",
               lineage_from_text(manifest("step_0000003"), wrong, "m"));
}

TEST_F(Branches, StepsAfterTheResumedOneAreMovedAsideAndReported) {
  SavingRun back(save_, 1);
  const std::string old = manifest("step_0000003");
  const std::string reported = back.save(4);
  EXPECT_EQ(reported,
            "[megalith] warning: " + save_ +
                "/step_0000003 does not lead to step_0000004: renamed to step_0000003.abandoned-1, which no run loads "
                "or removes\n[megalith] warning: " +
                save_ +
                "/step_0000002 does not lead to step_0000004: renamed to step_0000002.abandoned-1, which no run loads "
                "or removes\n");
  EXPECT_EQ(checkpoints(),
            (Names{"step_0000001", "step_0000002.abandoned-1", "step_0000003.abandoned-1", "step_0000004"}));
  EXPECT_EQ(manifest("step_0000003.abandoned-1"), old);
  EXPECT_EQ(load_alone(save_), 4);
}

TEST_F(Branches, AStepBelowTheAbandonedOnesIsTheNewest) {
  for (const std::int64_t step : {5, 9}) EXPECT_EQ(SavingRun(save_, step == 5 ? 3 : 5).save(step), "");
  SavingRun(save_, 3).save(4);
  EXPECT_EQ(load_alone(save_), 4);
  EXPECT_EQ(SavingRun(save_, 0).save(6), "");  // a plain restart continues with it
  EXPECT_EQ(checkpoints(), (Names{"step_0000001", "step_0000002", "step_0000003", "step_0000004",
                                  "step_0000005.abandoned-1", "step_0000006", "step_0000009.abandoned-1"}));
}

TEST_F(Branches, TheSameStepSavedAgainKeepsTheOldOne) {
  const std::string old = manifest("step_0000002");
  SavingRun back(save_, 1);
  EXPECT_NE(back.save(2).find("/step_0000002 of an earlier save does not lead to this one: renamed to "
                              "step_0000002.abandoned-1"),
            std::string::npos);
  EXPECT_EQ(checkpoints(),
            (Names{"step_0000001", "step_0000002", "step_0000002.abandoned-1", "step_0000003.abandoned-1"}));
  EXPECT_EQ(manifest("step_0000002.abandoned-1"), old);
  SavingRun(save_, 1).save(2);
  EXPECT_EQ(checkpoints(), (Names{"step_0000001", "step_0000002", "step_0000002.abandoned-1",
                                  "step_0000002.abandoned-2", "step_0000003.abandoned-1"}));
}

TEST_F(Branches, RetentionCountsTheLiveBranchAlone) {
  SavingRun back(save_, 1);
  back.save(4, 2);
  EXPECT_EQ(checkpoints(),
            (Names{"step_0000001", "step_0000002.abandoned-1", "step_0000003.abandoned-1", "step_0000004"}));
  back.save(5, 2);
  EXPECT_EQ(checkpoints(),
            (Names{"step_0000002.abandoned-1", "step_0000003.abandoned-1", "step_0000004", "step_0000005"}));
}

// The branch follows from the checkpoints' content, also if nothing can be renamed.
TEST_F(Branches, WhatCannotBeMovedIsPassedOverAndMovedLater) {
  SavingRun back(save_, 1);
  {
    const Faults faults("save.aside.rename:1+:eio");
    const SaveResult result = back.try_save(4, 1);
    EXPECT_TRUE(result.saved);
    EXPECT_NE(result.message.find("cannot rename " + save_ + "/step_0000003 to step_0000003.abandoned-1"),
              std::string::npos)
        << result.message;
    EXPECT_NE(result.message.find("/step_0000002 to "), std::string::npos) << result.message;
  }
  EXPECT_EQ(checkpoints(), (Names{"step_0000002", "step_0000003", "step_0000004"}));
  testing::internal::CaptureStderr();
  EXPECT_EQ(load_alone(save_), 4);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "[megalith] warning: " + save_ +
                ": passed over, since they do not lead to step_0000004, which was saved last: step_0000003, "
                "step_0000002; --ckpt-step loads them\n");
  EXPECT_EQ(SavingRun(save_, 3).loaded(), 3);
  // Nothing of the branch is left: a replacement is reported.
  flip("step_0000004/rank_0000_of_0001.safetensors");
  EXPECT_ERROR(ExitCode::kNoCheckpoint,
               "; of another branch, for --ckpt-step: step_0000003, step_0000002; restore a copy", load_alone(save_));
  flip("step_0000004/rank_0000_of_0001.safetensors");
  SavingRun(save_, 0).save(5);
  EXPECT_EQ(checkpoints(),
            (Names{"step_0000002.abandoned-1", "step_0000003.abandoned-1", "step_0000004", "step_0000005"}));
}

TEST_F(Branches, ACrashAtAnyOperationLosesNothing) {
  for (const std::int64_t saved : {2, 4}) {  // over an abandoned one, and after them
    for (int at = 0;; ++at) {
      fs::remove_all(save_);
      SetUp();
      const Names old = {manifest("step_0000001"), manifest("step_0000002"), manifest("step_0000003")};
      SavingRun back(save_, 1);
      int operations = 0;
      const FileObserver observer = [&](const FileOperation&) {
        if (operations++ == at) throw Crash{};
      };
      testing::internal::CaptureStderr();
      bool crashed = false;
      try {
        EXPECT_TRUE(back.try_save(saved, 0, &observer).saved);
      } catch (const Crash&) {
        crashed = true;
      }
      SavingRun next(save_, 0);
      const bool is_new = next.loaded() == saved && manifest(checkpoint_name(saved)) != old[1];
      EXPECT_TRUE(is_new || next.loaded() == 3) << at << ": " << next.loaded();
      EXPECT_TRUE(next.try_save(7).saved) << at;
      Names left;
      for (const std::string& name : checkpoints()) {
        EXPECT_FALSE(is_temporary_name(name)) << name << " at " << at;
        left.push_back(manifest(name));
      }
      for (const std::string& each : old) EXPECT_EQ(std::count(left.begin(), left.end(), each), 1) << at;
      EXPECT_EQ(load_alone(save_), 7);
      testing::internal::GetCapturedStderr();
      if (HasFailure()) return;
      if (crashed) continue;
      EXPECT_GT(at, 30);
      EXPECT_TRUE(is_new);
      break;
    }
  }
}

// Written without parents: they follow each other by their steps.
TEST_F(Branches, OlderCheckpointsWithoutAParent) {
  for (const bool goes_back : {false, true}) {
    fs::remove_all(save_);
    for (const std::int64_t step : {1, 2, 3}) EXPECT_TRUE(save_alone(save_, step).saved);
    EXPECT_EQ(manifest("step_0000003").find("lineage"), std::string::npos);
    EXPECT_EQ(load_alone(save_), 3);
    SavingRun run(save_, goes_back ? 1 : 0);
    EXPECT_EQ(run.save(4).empty(), !goes_back);
    EXPECT_EQ(load_alone(save_), 4);
    EXPECT_EQ(run.save(5, 3), "");
    EXPECT_EQ(checkpoints(), goes_back ? (Names{"step_0000001", "step_0000002.abandoned-1", "step_0000003.abandoned-1",
                                                "step_0000004", "step_0000005"})
                                       : (Names{"step_0000003", "step_0000004", "step_0000005"}));
  }
}

TEST_F(Branches, ARunFromStepZeroMovesAllOthersAside) {
  SavingRun fresh(save_);
  fresh.save(2);
  EXPECT_EQ(checkpoints(), (Names{"step_0000001.abandoned-1", "step_0000002", "step_0000002.abandoned-1",
                                  "step_0000003.abandoned-1"}));
  EXPECT_EQ(load_alone(save_), 2);
}

TEST_F(Branches, ARunFromAnotherFolderPrunesNoneOfThoseHere) {
  fs::rename(save_, folder_.path("first"));
  SavingRun other(save_);
  other.save(1);
  other.save(7);
  SavingRun run(save_);
  run.load(folder_.path("first"));
  EXPECT_EQ(run.loaded(), 3);
  run.save(4, 1);
  EXPECT_EQ(checkpoints(), (Names{"step_0000001.abandoned-1", "step_0000004", "step_0000007.abandoned-1"}));
  EXPECT_EQ(run.save(5, 1), "");
  EXPECT_EQ(load_alone(save_), 5);
}

TEST_F(Branches, ACopyOfTheFolderHasTheSameAncestors) {
  const std::string copy = folder_.path("copy");
  fs::copy(save_, copy, fs::copy_options::recursive);
  SavingRun run(copy);
  run.load(save_);
  EXPECT_EQ(run.save(4), "");
  EXPECT_EQ(names_in(copy), (Names{"LATEST", "step_0000001", "step_0000002", "step_0000003", "step_0000004"}));
}

TEST_F(Branches, AFolderThatComesBackGoesOnFromTheNewestOfTheRunInIt) {
  SavingRun run(save_, 3);
  EXPECT_EQ(run.save(4), "");
  fs::rename(save_, folder_.path("away"));
  EXPECT_NE(run.save(5).find("is another folder than before"), std::string::npos);
  fs::rename(save_, folder_.path("meanwhile"));
  fs::rename(folder_.path("away"), save_);
  const std::string reported = run.save(6);
  EXPECT_EQ(reported.find("does not lead to"), std::string::npos) << reported;
  EXPECT_EQ(checkpoints(), (Names{"step_0000001", "step_0000002", "step_0000003", "step_0000004", "step_0000006"}));
  EXPECT_EQ(load_alone(save_), 6);
}

TEST_F(Branches, TheSameFolderUnderAnotherNameIsNoOther) {
  fs::create_directory_symlink(save_, folder_.path("link"));
  SavingRun run(save_);
  run.load(folder_.path("link"));
  EXPECT_EQ(run.save(4), "");
  EXPECT_EQ(checkpoints(), (Names{"step_0000001", "step_0000002", "step_0000003", "step_0000004"}));
}

TEST_F(Branches, AStepThatWasMovedAsideIsNamed) {
  SavingRun(save_, 1).save(4);
  EXPECT_ERROR(ExitCode::kNoCheckpoint,
               "no valid checkpoint in " + save_ +
                   " for step 3; there is none of that step: leave --ckpt-step out for the newest; moved aside are "
                   "step_0000003.abandoned-1: to load one, rename it to step_0000003",
               SavingRun(save_, 3));
}

// Nothing that a manifest says stops the saves of its folder.
TEST_F(Branches, TheLastSerialNumberIsNoEnd) {
  Manifest last = manifest_from_text(manifest("step_0000003"), "m");
  last.lineage->serial = kMaxSerial;
  write_bytes(save_ + "/step_0000003/manifest.json", to_text(last));
  SavingRun run(save_, 0);
  EXPECT_EQ(run.loaded(), 3);
  for (const std::int64_t step : {4, 5}) {
    EXPECT_EQ(run.save(step), "");
    EXPECT_EQ(load_alone(save_), step);
  }
}

TEST_F(Branches, ADamagedNewestFallsBackToItsParent) {
  for (const char* file : {"rank_0000_of_0001.safetensors", "manifest.json"}) {
    fs::remove_all(save_);
    SetUp();
    flip(std::string("step_0000003/") + file);
    testing::internal::CaptureStderr();
    SavingRun run(save_, 0);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("step_0000003 is not valid, trying the next older one"),
              std::string::npos);
    EXPECT_EQ(run.loaded(), 2);
    EXPECT_NE(run.save(4).find("/step_0000003 does not lead to step_0000004"), std::string::npos);
    EXPECT_EQ(checkpoints(), (Names{"step_0000001", "step_0000002", "step_0000003.abandoned-1", "step_0000004"}));
  }
}

TEST_F(Branches, OneThatSomebodyRemovedBreaksNothing) {
  fs::remove_all(save_ + "/step_0000002");
  EXPECT_EQ(SavingRun(save_, 0).save(4), "");
  EXPECT_EQ(checkpoints(), (Names{"step_0000001", "step_0000003", "step_0000004"}));
  flip("step_0000004/state.json");
  flip("step_0000003/state.json");
  testing::internal::CaptureStderr();
  EXPECT_EQ(load_alone(save_), 1);
  testing::internal::GetCapturedStderr();
}

TEST_F(Branches, OfSeveralRanksWritingConcurrently) {
  ThreadRanks(3).run([&](Communicator& ranks) {
    CheckpointHistory history;
    ASSERT_TRUE(find_checkpoint({.directory = save_, .step = 1, .history = &history, .ranks = &ranks}));
    BackgroundSave background;
    const ShardList all = whole_tensors(test_model(4));
    background.begin({.directory = save_,
                      .state = state_at(4),
                      .shards = shards_of(all, ranks),
                      .keep_last = 1,
                      .history = &history,
                      .ranks = &ranks},
                     [] {});
    EXPECT_TRUE(background.wait().saved);
  });
  EXPECT_EQ(checkpoints(), (Names{"step_0000002.abandoned-1", "step_0000003.abandoned-1", "step_0000004"}));
  EXPECT_EQ(load_alone(save_), 4);
}

// Each manifest is read once by a run, however many saves it makes.
TEST_F(Branches, ManifestsAreReadOnce) {
  SavingRun run(save_, 0);
  int read = 0;
  const FileObserver observer = [&](const FileOperation& seen) {
    read += seen.name == "read" && seen.path.ends_with("manifest.json") ? 1 : 0;
  };
  for (const std::int64_t step : {4, 5, 6}) EXPECT_TRUE(run.try_save(step, 0, &observer).saved);
  EXPECT_EQ(read, 0);
}

TEST_F(Branches, AFolderThatIsGoneIsReportedAndMadeAgain) {
  SavingRun run(save_, 0);
  run.save(4);
  fs::remove_all(save_);
  EXPECT_EQ(run.save(5), "[megalith] warning: " + save_ +
                             " is another folder than before, which was removed or moved: gone are step_0000001, "
                             "step_0000002, step_0000003, step_0000004\n");
  EXPECT_EQ(checkpoints(), (Names{"step_0000005"}));
  EXPECT_EQ(load_alone(save_), 5);
  EXPECT_EQ(run.save(6, 1), "");
  fs::remove_all(save_ + "/step_0000006");
  EXPECT_EQ(run.save(7), "[megalith] warning: " + save_ + ": gone are step_0000006\n");
}

TEST_F(Branches, AFolderThatIsNotTheRunsFailsTheSave) {
  const auto save = [&](const std::function<void(const Directory&)>& hold) {
    const ShardList all = whole_tensors(test_model(4));
    return save_checkpoint({.directory = save_, .state = state_at(4), .shards = all.get(), .hold = hold});
  };
  const SaveResult refused = save([&](const Directory& root) {
    EXPECT_EQ(root.path(), save_);
    fail({.code = ExitCode::kFileIo, .subject = "held by another", .show_place = false});
  });
  EXPECT_FALSE(refused.saved);
  EXPECT_EQ(refused.message, "held by another");
  EXPECT_EQ(checkpoints(), (Names{"step_0000001", "step_0000002", "step_0000003"}));
  EXPECT_TRUE(save([](const Directory&) {}).saved);
}

TEST_F(Branches, MultiplesOfTheRetainIntervalStay) {
  SavingRun run(save_, 3);
  for (const std::int64_t step : {4, 5}) EXPECT_EQ(run.save(step), "");
  std::set<std::string> verified{"step_0000005"};
  const PruneRequest request{.names = {"step_0000005", "step_0000004", "step_0000003", "step_0000002", "step_0000001"},
                             .keep_last = 1,
                             .retain_interval = 2,
                             .just_saved = "step_0000005",
                             .verified = verified};
  EXPECT_EQ(prune_checkpoints(Directory::open(save_), request), "");
  EXPECT_EQ(checkpoints(), (Names{"step_0000002", "step_0000004", "step_0000005"}));
}

}  // namespace
}  // namespace megalith

// A power loss after any operation of a save, with any of the unsynced changes lost. The remaining disk loads as the
// new or the previous checkpoint, bit for bit.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "parallel/checkpoint/manifest.h"
#include "tests/support/tier.h"
#include "tests/unit/parallel/checkpoint_support.h"
#include "tests/unit/parallel/disk_model.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxForAll = 10;  // unsynced changes of which every combination is tried
constexpr int kSamples = 1000;          // otherwise

class PowerLoss : public testing::Test {
 protected:
  // Records the save of step 2 above the folder's checkpoints, then tries every prefix of its log.
  void run(int num_ranks, int keep_last, bool async = false) {
    const std::string save = folder_.path("save");
    DiskModel disk(save);
    const FileObserver observer = disk.observer();
    ThreadRanks(num_ranks).run([&](Communicator& ranks) {
      BackgroundSave background;
      const SaveResult result = async ? save_async(background, ranks, save, 2, keep_last, &observer)
                                      : save_shared(ranks, save, 2, keep_last, &observer);
      EXPECT_TRUE(result.saved && result.message.empty()) << result.message;
    });
    ASSERT_FALSE(HasFailure());
    std::size_t committed = 0;  // from here on the new one is safe: the parent was synced after the rename
    for (std::size_t i = 1; i < disk.size() && committed == 0; ++i) {
      const bool is_commit = disk.target(i - 1) == save + "/step_0000002";
      if (is_commit && disk.name(i) == "sync") committed = i + 1;
    }
    ASSERT_GT(committed, 0u);
    for (std::size_t count = 0; count <= disk.size(); ++count) {
      const std::size_t pending = disk.unsynced(count).size();
      max_pending_ = std::max(max_pending_, pending);
      const bool all = pending <= kMaxForAll;
      const int tries = all ? 1 << pending : kSamples / test::one_of(20);
      for (int n = 0; n < tries; ++n) {
        std::vector<bool> kept(pending);
        for (std::size_t i = 0; i < pending; ++i) kept[i] = all ? (n >> i & 1) != 0 : (random_() & 1) != 0;
        check(disk, count, kept, count >= committed);
        if (HasFailure()) return;
      }
    }
  }

  void check(const DiskModel& disk, std::size_t count, const std::vector<bool>& kept, bool committed) {
    ++replays_;
    const auto [place, fresh] = loaded_.try_emplace(disk.content(count, kept), -1);
    std::string warnings;  // about damaged ones
    if (fresh) {
      const std::string target = folder_.path("replayed");
      fs::remove_all(target);
      fs::create_directory(target);
      disk.replay(count, kept, target);
      testing::internal::CaptureStderr();
      place->second = load_alone(target);
      warnings = testing::internal::GetCapturedStderr();
    }
    const std::int64_t step = place->second;
    std::string lost;
    const auto pending = disk.unsynced(count);
    for (std::size_t i = 0; i < pending.size(); ++i) {
      if (!kept[i]) lost += " " + disk.name(pending[i]) + ":" + disk.path(pending[i]);
    }
    EXPECT_TRUE(step == 2 || (!committed && step == 1))
        << "step " << step << " after " << count << " operations, lost:" << lost << "\n"
        << warnings;
    loaded_new_ += step == 2 ? 1 : 0;
  }

  TestFolder folder_;
  std::mt19937 random_{20261121};
  std::size_t max_pending_ = 0;
  int replays_ = 0;
  int loaded_new_ = 0;
  std::map<std::string, std::int64_t> loaded_;  // key: content of the folder; value: its step
};

TEST_F(PowerLoss, AnySaveLeavesTheNewOrThePreviousCheckpoint) {
  ASSERT_TRUE(save_alone(folder_.path("save"), 1).saved);
  run(1, 1);
  RecordProperty("replays", replays_);
  RecordProperty("different", static_cast<int>(loaded_.size()));
  EXPECT_GT(replays_, 1000);
  EXPECT_GT(loaded_new_, 20);
  EXPECT_LT(loaded_new_, replays_);
  EXPECT_GE(max_pending_, 8u);
  EXPECT_LE(max_pending_, kMaxForAll);
}

TEST_F(PowerLoss, ASaveOfSeveralRanks) {
  ASSERT_TRUE(save_alone(folder_.path("save"), 1).saved);
  run(7, 1);  // this many names at the sync of their folder
  RecordProperty("replays", replays_);
  RecordProperty("different", static_cast<int>(loaded_.size()));
  EXPECT_GT(max_pending_, kMaxForAll);
  EXPECT_GT(loaded_new_, 20);
}

// Written by threads of two ranks, as --async-save does.
TEST_F(PowerLoss, AnAsynchronousSave) {
  ASSERT_TRUE(save_alone(folder_.path("save"), 1).saved);
  run(2, 1, true);
  EXPECT_GT(replays_, 300);  // the ranks' operations interleave freely
  EXPECT_GT(loaded_new_, 20);
  EXPECT_LT(loaded_new_, replays_);
}

TEST_F(PowerLoss, AStepThatIsSavedAgain) {
  ASSERT_TRUE(save_alone(folder_.path("save"), 1).saved);
  ASSERT_TRUE(save_alone(folder_.path("save"), 2).saved);
  run(1, 0);
  EXPECT_EQ(loaded_new_, replays_);  // the old and the new step 2 are equal
}

// The model itself: a loss of data that was not synced shows.
TEST_F(PowerLoss, TheModelLosesWhatWasNotSynced) {
  const std::string save = folder_.path("save");
  fs::create_directory(save);
  DiskModel disk(save);
  const FileObserver observer = disk.observer();
  const Directory root = Directory::open(save, &observer);
  File file = root.create_file("a");
  file.write("one");
  file.write("two");
  root.rename("a", "b");
  ASSERT_EQ(disk.size(), 4u);
  EXPECT_EQ(disk.unsynced(4), (std::vector<std::size_t>{0, 1, 2, 3}));
  const auto replayed = [&](std::size_t count, const std::vector<bool>& kept) {
    const std::string target = folder_.path("replayed");
    fs::remove_all(target);
    fs::create_directory(target);
    disk.replay(count, kept, target);
    std::string text;
    for (const std::string& name : names_in(target)) text += name + "=" + read_bytes(target + "/" + name) + ";";
    return text;
  };
  EXPECT_EQ(replayed(3, {true, true, true}), "a=onetwo;");
  EXPECT_EQ(replayed(3, {false, true, true}), "");
  EXPECT_EQ(replayed(3, {true, false, true}), "a=" + std::string(3, '\0') + "two;");
  EXPECT_EQ(replayed(3, {true, true, false}), "a=one;");
  EXPECT_EQ(replayed(4, {true, true, true, true}), "b=onetwo;");
  EXPECT_EQ(replayed(4, {false, true, true, true}), "b=onetwo;");
  root.open_file("b").sync();
  EXPECT_EQ(disk.unsynced(5), (std::vector<std::size_t>{0, 3}));
  root.sync();
  EXPECT_TRUE(disk.unsynced(6).empty());
  EXPECT_EQ(replayed(6, {}), "b=onetwo;");
}

}  // namespace
}  // namespace megalith

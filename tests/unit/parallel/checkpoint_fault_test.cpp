// Crashes and failures at every single operation on the file system, full disks, retention.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <map>
#include <optional>

#include "parallel/checkpoint/manifest.h"
#include "tests/unit/parallel/checkpoint_support.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

class CheckpointFaults : public testing::Test {
 protected:
  // A folder with the checkpoints of these steps.
  std::string start(std::initializer_list<std::int64_t> steps) {
    const std::string save = folder_.path("save");
    fs::remove_all(save);
    for (const std::int64_t step : steps) EXPECT_TRUE(save_alone(save, step).saved);
    return save;
  }
  static int temporaries(const std::string& save) {
    int count = 0;
    for (const std::string& name : names_in(save)) count += is_temporary_name(name) ? 1 : 0;
    return count;
  }
  TestFolder folder_;
};

// Saves step 2 (again, if `steps` has it) and crashes at operation 0, 1, 2, ... until a save survives.
void crash_everywhere(const std::string& save, const std::function<void()>& restore, int& survived_new) {
  for (int at = 0;; ++at) {
    restore();
    int operations = 0;
    const FileObserver observer = [&](const FileOperation&) {
      if (operations++ == at) throw Crash{};
    };
    bool crashed = false;
    try {
      EXPECT_TRUE(save_alone(save, 2, 2, &observer).saved);
    } catch (const Crash&) {
      crashed = true;
    }
    const std::int64_t step = load_alone(save);
    EXPECT_TRUE(step == 1 || step == 2) << "crash before operation " << at << " leaves step " << step;
    survived_new += step == 2 ? 1 : 0;
    // The next save works and sweeps up.
    const SaveResult next = save_alone(save, 3, 2);
    EXPECT_TRUE(next.saved && next.message.empty()) << "after a crash before operation " << at << ": " << next.message;
    EXPECT_EQ(load_alone(save), 3);
    for (const std::string& name : names_in(save)) EXPECT_FALSE(is_temporary_name(name)) << name << " at " << at;
    if (!crashed) {
      EXPECT_GT(at, 30);
      EXPECT_EQ(step, 2);
      return;
    }
  }
}

TEST_F(CheckpointFaults, CrashAtEveryOperationLeavesALoadableCheckpoint) {
  int survived_new = 0;
  crash_everywhere(
      folder_.path("save"), [&] { start({1}); }, survived_new);
  EXPECT_GT(survived_new, 1);
}

TEST_F(CheckpointFaults, CrashWhileAStepIsSavedAgainLeavesALoadableCheckpoint) {
  int survived_new = 0;
  crash_everywhere(
      folder_.path("save"),
      [&] {
        start({1, 2});
      },
      survived_new);
  EXPECT_GT(survived_new, 30);  // step 2 exists before and after the exchange
}

TEST_F(CheckpointFaults, CrashWhilePruningLeavesTheNewest) {
  int survived_new = 0;
  crash_everywhere(
      folder_.path("save"),
      [&] {
        const std::string save = start({1});
        fs::copy(folder_.path("save/step_0000001"), folder_.path("save/step_0000000"), fs::copy_options::recursive);
      },
      survived_new);
  EXPECT_GT(survived_new, 1);
}

TEST_F(CheckpointFaults, ErrorAtEveryOperationFailsTheSaveAndLeavesTheOldOne) {
  for (int at = 0;; ++at) {
    const std::string save = start({1});
    int operations = 0;
    const FileObserver observer = [&](const FileOperation&) {
      if (operations++ == at) fail({.code = ExitCode::kFileIo, .subject = "injected"});
    };
    const SaveResult result = save_alone(save, 2, 1, &observer);
    if (operations <= at) {
      EXPECT_TRUE(result.saved && result.message.empty()) << result.message;
      EXPECT_GT(at, 30);
      break;
    }
    EXPECT_NE(result.message.find("injected"), std::string::npos) << result.message;
    // After the commit only the removal of older ones can fail; the next save finishes it.
    EXPECT_TRUE(result.saved || temporaries(save) == 0) << at;
    const std::int64_t step = load_alone(save);
    EXPECT_TRUE(step == 2 || (step == 1 && !result.saved)) << at;
    EXPECT_TRUE(save_alone(save, 3).saved);
    EXPECT_EQ(temporaries(save), 0) << at;
  }
}

TEST_F(CheckpointFaults, ErrorOnOneOfFourRanksIsSeenByAll) {
  for (const int bad_rank : {0, 2}) {
    for (const char* operation : {"open", "create", "write", "sync"}) {
      const std::string save = start({1});
      std::atomic<int> reports = 0;
      ThreadRanks(4).run([&](Communicator& ranks) {
        const FileObserver observer = [&](const FileOperation& seen) {
          if (ranks.rank() == bad_rank && seen.name == operation &&
              seen.path.find(".safetensors") != std::string::npos) {
            fail({.code = ExitCode::kFileIo, .subject = "injected"});
          }
          if (ranks.rank() == bad_rank && seen.name == operation && seen.name == "open") {
            fail({.code = ExitCode::kFileIo, .subject = "injected"});
          }
        };
        const SaveResult result = save_shared(ranks, save, 2, 1, &observer);
        EXPECT_FALSE(result.saved);
        EXPECT_NE(result.message.find("rank " + std::to_string(bad_rank) + ": "), std::string::npos) << result.message;
        EXPECT_NE(result.message.find("injected"), std::string::npos) << result.message;
        ++reports;
      });
      EXPECT_EQ(reports, 4);
      EXPECT_EQ(temporaries(save), 0) << operation;
      EXPECT_FALSE(fs::exists(folder_.path("save/step_0000002")));
      EXPECT_EQ(load_alone(save), 1);
    }
  }
}

TEST_F(CheckpointFaults, EverythingIsDurableBeforeItGetsItsName) {
  const std::string save = start({1});
  std::map<std::string, bool> dirty;  // files written and not yet synced
  std::string order;
  bool folder_synced = false;
  const FileObserver observer = [&](const FileOperation& seen) {
    const std::string path(seen.path);
    const bool is_folder = path.ends_with("/save") || path.find(".tmp-") == path.rfind('/') + 13;
    if (seen.name == "write") dirty[path] = true, folder_synced = false;
    if (seen.name == "sync" && !is_folder) dirty[path] = false;
    if (seen.name == "sync" && is_folder) order += path.ends_with("/save") ? "P" : "F", folder_synced = true;
    if (seen.name == "rename") {
      for (const auto& [file, is_dirty] : dirty) EXPECT_FALSE(is_dirty) << file << " at the rename of " << path;
      EXPECT_TRUE(!is_folder || folder_synced);
      order += path.ends_with("manifest.json.tmp") ? "m" : path.ends_with("LATEST.tmp") ? "l" : "r";
    }
  };
  ASSERT_TRUE(save_alone(save, 2, 0, &observer).saved);
  // Manifest, its folder, the folder's name, its parent, LATEST, its parent.
  EXPECT_EQ(order, "mFrPlP");
  EXPECT_EQ(dirty.size(), 5u);
}

TEST_F(CheckpointFaults, FolderThatCannotBeWritten) {
  write_bytes(folder_.path("file"), "x");
  const SaveResult result = save_alone(folder_.path("file/save"), 1);
  EXPECT_FALSE(result.saved);
  EXPECT_NE(result.message.find(folder_.path("file")), std::string::npos) << result.message;
  EXPECT_NE(result.message.find("ENOTDIR"), std::string::npos) << result.message;
}

TEST_F(CheckpointFaults, FileSizeLimitWhileWriting) {
  const std::string save = start({1});
  const std::string data(1 << 18, 'x');
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low = {.rlim_cur = 1 << 16, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const SaveResult result = save_checkpoint(
      {.directory = save,
       .state = state_at(2),
       .shards = {{"param/x", DType::kUint8, {1 << 18}, Slice::whole({1 << 18}), std::as_bytes(std::span(data))}},
       .keep_last = 1});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_FALSE(result.saved);
  EXPECT_NE(result.message.find("EFBIG"), std::string::npos) << result.message;
  EXPECT_EQ(names_in(save), (std::vector<std::string>{"LATEST", "step_0000001"}));
  EXPECT_EQ(load_alone(save), 1);
}

TEST_F(CheckpointFaults, FullDisk) {
  const std::string disk = folder_.path("disk");
  fs::create_directory(disk);
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  const std::string save = disk + "/save";
  ASSERT_TRUE(save_alone(save, 1).saved);
  const std::string data(1 << 18, 'x');
  SaveRequest request = {
      .directory = save,
      .state = state_at(2),
      .shards = {{"param/x", DType::kUint8, {1 << 18}, Slice::whole({1 << 18}), std::as_bytes(std::span(data))}},
      .keep_last = 1};
  int writes = 0;
  const FileObserver count = [&](const FileOperation& seen) { writes += seen.name == "write" ? 1 : 0; };
  request.observer = &count;
  SaveResult result = save_checkpoint(request);
  EXPECT_FALSE(result.saved);
  EXPECT_NE(result.message.find("free space in " + save + ": expected at least"), std::string::npos) << result.message;
  EXPECT_EQ(writes, 0);  // rejected ahead of any write

  // The disk has space at the check, but not at the write.
  bool filled = false;
  const FileObserver filler = [&](const FileOperation& seen) {
    if (seen.name != "write" || std::exchange(filled, true)) return;
    std::ofstream out(disk + "/other", std::ios::binary);
    out << std::string(1 << 20, 'y') << std::flush;
  };
  request.shards[0].shape = {1 << 17};
  request.shards[0].slice = Slice::whole({1 << 17});
  request.shards[0].data = std::as_bytes(std::span(data)).first(1 << 17);
  request.observer = &filler;
  result = save_checkpoint(request);
  EXPECT_FALSE(result.saved);
  EXPECT_NE(result.message.find("ENOSPC"), std::string::npos) << result.message;
  EXPECT_EQ(names_in(save), (std::vector<std::string>{"LATEST", "step_0000001"}));
  EXPECT_EQ(load_alone(save), 1);
  fs::remove(disk + "/other");
  request.observer = nullptr;
  result = save_checkpoint(request);
  EXPECT_TRUE(result.saved) << result.message;
  ::umount2(disk.c_str(), MNT_DETACH);
}

using Names = std::vector<std::string>;

TEST_F(CheckpointFaults, RetentionKeepsTheLastOnes) {
  const std::string save = folder_.path("save");
  for (int step = 1; step <= 5; ++step) ASSERT_TRUE(save_alone(save, step, 2).saved);
  EXPECT_EQ(names_in(save), (Names{"LATEST", "step_0000004", "step_0000005"}));
  for (int step = 6; step <= 8; ++step) ASSERT_TRUE(save_alone(save, step, 0).saved);
  EXPECT_EQ(names_in(save).size(), 6u);
}

TEST_F(CheckpointFaults, RetentionCountsVerifiedOnesOnly) {
  const std::string save = start({1, 2, 3, 4});
  const std::string path = folder_.path("save/step_0000004/rank_0000_of_0001.safetensors");
  std::string bytes = read_bytes(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(path, bytes);
  ASSERT_TRUE(save_alone(save, 5, 2).saved);
  // 5 and 3 are valid; 4 is newer than these and stays to be looked at.
  EXPECT_EQ(names_in(save), (Names{"LATEST", "step_0000003", "step_0000004", "step_0000005"}));
}

TEST_F(CheckpointFaults, RetentionRemembersWhatThisRunVerified) {
  const std::string save = folder_.path("save");
  CheckpointHistory history;
  int read = 0;
  const FileObserver observer = [&](const FileOperation& seen) {
    read += seen.name == "read" && seen.path.ends_with(".safetensors") ? 1 : 0;
  };
  for (int step = 1; step <= 4; ++step) {
    const SaveResult result = save_shared(one_rank(), save, step, 2, &observer, &history);
    ASSERT_TRUE(result.saved) << result.message;
  }
  EXPECT_EQ(read, 0);  // none was read again
  EXPECT_EQ(history.verified, (std::set<std::string>{"step_0000003", "step_0000004"}));
  EXPECT_EQ(names_in(save), (Names{"LATEST", "step_0000003", "step_0000004"}));
  // A changed size shows without reading.
  fs::resize_file(folder_.path("save/step_0000004/rank_0000_of_0001.safetensors"), 100);
  ASSERT_TRUE(save_shared(one_rank(), save, 5, 2, nullptr, &history).saved);
  EXPECT_EQ(names_in(save), (Names{"LATEST", "step_0000003", "step_0000004", "step_0000005"}));
}

TEST_F(CheckpointFaults, TheCheckpointJustSavedStaysEvenWhenOthersAreNewer) {
  const std::string save = start({8, 9});
  ASSERT_TRUE(save_alone(save, 1, 2).saved);
  EXPECT_EQ(names_in(save), (Names{"LATEST", "step_0000001", "step_0000008", "step_0000009"}));
}

TEST_F(CheckpointFaults, StaleTemporariesGoLockedOnesStay) {
  const std::string save = start({1});
  fs::create_directory(folder_.path("save/step_0000002.tmp-dead"));
  write_bytes(folder_.path("save/step_0000002.tmp-dead/file"), "x");
  fs::create_directory(folder_.path("save/step_0000002.tmp-beef"));
  fs::create_directory(folder_.path("save/notes.tmp-1"));
  const Directory living = Directory::open(save).open_directory("step_0000002.tmp-beef");
  ASSERT_TRUE(living.try_lock());
  ASSERT_TRUE(save_alone(save, 3).saved);
  EXPECT_EQ(names_in(save), (Names{"LATEST", "notes.tmp-1", "step_0000001", "step_0000002.tmp-beef", "step_0000003"}));
}

}  // namespace
}  // namespace megalith

// The lock of --save, and what becomes of it when the folder goes away under the run.
#include "parallel/checkpoint/save_lock.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/base/files/fault.h"
#include "tests/support/test_folder.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

LockState state_of(const std::string& folder) { return Directory::open(folder).open_to_lock("run.lock").try_lock(); }

std::string hold(SaveLock& lock, const std::string& folder) {
  testing::internal::CaptureStderr();
  lock.hold(Directory::create(folder));
  return testing::internal::GetCapturedStderr();
}

TEST(SaveLock, IsHeldInTheFolderThatIsThere) {
  const TestFolder folder;
  const std::string save = folder.path("save");
  fs::create_directory(save);
  SaveLock lock(save);
  EXPECT_EQ(state_of(save), LockState::kHeld);
  EXPECT_EQ(hold(lock, save), "");
  const std::string reported = "[megalith] warning: --save " + save +
                               ": it, or run.lock in it, was removed or moved while the run held it; locked again\n";
  fs::remove_all(save);
  EXPECT_EQ(hold(lock, save), reported);
  EXPECT_EQ(state_of(save), LockState::kHeld);
  EXPECT_EQ(hold(lock, save), "");
  fs::rename(save, folder.path("moved"));
  EXPECT_EQ(hold(lock, save), reported);
  EXPECT_EQ(state_of(save), LockState::kHeld);
  EXPECT_EQ(state_of(folder.path("moved")), LockState::kTaken);
  fs::remove(save + "/run.lock");
  EXPECT_EQ(hold(lock, save), reported);
  EXPECT_EQ(state_of(save), LockState::kHeld);
}

TEST(SaveLock, AFolderThatAnotherRunTookMeanwhileIsRefused) {
  const TestFolder folder;
  const std::string save = folder.path("save");
  fs::create_directory(save);
  SaveLock lock(save);
  fs::remove_all(save);
  fs::create_directory(save);
  {
    const SaveLock other(save);
    for (int twice = 0; twice < 2; ++twice) {
      EXPECT_ERROR(ExitCode::kFileIo,
                   "--save " + save + ": expected a folder that no other run saves into, got one that another holds",
                   lock.hold(Directory::open(save)));
    }
  }
  EXPECT_NE(hold(lock, save).find("locked again"), std::string::npos);
}

TEST(SaveLock, WhatKilledSavesLeftIsRemovedAtTheStart) {
  const TestFolder folder;
  fs::create_directory(folder.path("step_0000002.tmp-dead"));
  write_bytes(folder.path("step_0000002.tmp-dead/file"), "x");
  { const SaveLock lock(folder.path()); }
  EXPECT_FALSE(fs::exists(folder.path("step_0000002.tmp-dead")));
  fs::create_directory(folder.path("step_0000002.tmp-dead"));
  arm_faults({parse_fault("save.stale.remove:1:eio")});
  testing::internal::CaptureStderr();
  { const SaveLock lock(folder.path()); }
  disarm_faults();
  EXPECT_NE(
      testing::internal::GetCapturedStderr().find("what a killed save left there stays: cannot remove directory "),
      std::string::npos);
}

}  // namespace
}  // namespace megalith

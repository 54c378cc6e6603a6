#include "core/base/files/scratch_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/base/files/fault.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

class Scratch : public testing::Test {
 protected:
  Scratch() : parent_(testing::TempDir() + "scratch_" + std::to_string(getpid())) { fs::create_directory(parent_); }
  ~Scratch() override { fs::remove_all(parent_); }

  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(parent_)) found.insert(entry.path().filename().string());
    return found;
  }

  std::string parent_;
};

TEST_F(Scratch, GoesWithItsObject) {
  {
    const std::optional<ScratchFolder> folder = ScratchFolder::make(parent_, "own");
    ASSERT_TRUE(folder);
    EXPECT_TRUE(fs::is_directory(folder->path()));
    std::ofstream(folder->path() + "/segment") << "x";
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(Scratch, OfAKilledProcessGoesAtTheNextStartAndNoOther) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::optional<ScratchFolder> folder = ScratchFolder::make(parent_, "own");
    if (folder) std::ofstream(folder->path() + "/segment") << "x";
    raise(SIGKILL);
  }
  waitpid(child, nullptr, 0);
  ASSERT_EQ(names().size(), 1u);
  const std::string of_others = "own-" + std::to_string(getuid() + 1) + "-1-0";
  fs::create_directory(parent_ + "/" + of_others);
  fs::create_directory(parent_ + "/other");
  const std::optional<ScratchFolder> living = ScratchFolder::make(parent_, "own");
  ASSERT_TRUE(living);
  const std::set<std::string> after_first = {of_others, "other", fs::path(living->path()).filename().string()};
  EXPECT_EQ(names(), after_first);
  const std::optional<ScratchFolder> second = ScratchFolder::make(parent_, "own");
  ASSERT_TRUE(second);
  EXPECT_TRUE(fs::is_directory(living->path()));  // it is held
  EXPECT_EQ(names().size(), 4u);
}

TEST_F(Scratch, ThatCannotBeMadeIsNone) {
  EXPECT_FALSE(ScratchFolder::make(parent_ + "/missing", "own"));
  for (const char* fault : {"scratch.open:1:eio", "scratch.list:1:eio", "scratch.mkdir:1:enospc"}) {
    arm_faults({parse_fault(fault)});
    EXPECT_FALSE(ScratchFolder::make(parent_, "own")) << fault;
    disarm_faults();
  }
  arm_faults({parse_fault("scratch.lock:1:enolck")});  // the second try finds a lock
  EXPECT_TRUE(ScratchFolder::make(parent_, "own"));
  disarm_faults();
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace megalith

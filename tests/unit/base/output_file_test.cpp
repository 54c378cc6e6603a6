// Files that appear when they are complete: order of syncs, unpredictable names, leftovers.
#include "core/base/files/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/files/fault.h"
#include "tests/support/test_folder.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace {

std::mutex mutex;
std::vector<std::string>* synced = nullptr;  // while a test watches: synced files

}  // namespace

// Replaces the system's fsync, which it calls.
extern "C" int fsync(int fd) {
  const std::lock_guard lock(mutex);
  if (synced != nullptr) synced->push_back(std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace megalith {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class Synced {
 public:
  Synced() { synced = &paths_; }
  ~Synced() { synced = nullptr; }
  std::vector<std::string> take() { return std::exchange(paths_, {}); }

 private:
  std::vector<std::string> paths_;
};

TEST(OutputFile, IsSyncedBeforeItGetsItsNameAndItsFolderAfter) {
  const TestFolder folder;
  const std::string root = fs::canonical(folder.path()), path = root + "/out";
  Synced seen;
  OutputFile out(path, "report.output");
  out.write("text");
  EXPECT_TRUE(seen.take().empty());
  out.commit();
  const std::vector<std::string> paths = seen.take();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_TRUE(paths[0].starts_with(path + ".tmp-")) << paths[0];
  EXPECT_EQ(paths[1], root);
  remove_file(path);
  EXPECT_EQ(seen.take(), (std::vector<std::string>{root}));
}

TEST(OutputFile, AFolderThatCannotBeSyncedIsAnError) {
  const TestFolder folder;
  arm_faults({parse_fault("report.output.sync:2:eio")});
  OutputFile out(folder.path("out"), "report.output");
  out.write("text");
  EXPECT_ERROR(ExitCode::kFileIo, "cannot sync directory " + folder.path(), out.commit());
  EXPECT_EQ(faults_fired(), 1);
  disarm_faults();
}

// Directories and checkpoints go through the same call.
TEST(OutputFile, MadeFoldersAreSyncedInTheirParents) {
  const TestFolder folder;
  const std::string root = fs::canonical(folder.path());
  Synced seen;
  Directory::create(root + "/a/b");
  EXPECT_EQ(seen.take(), (std::vector<std::string>{root, root + "/a"}));
}

TEST(OutputFile, ItsTemporaryNameIsItsOwn) {
  const TestFolder folder;
  const OutputFile one(folder.path("out"), "report.output"), two(folder.path("out"), "report.output");
  const std::vector<std::string> names = names_in(folder.path());
  ASSERT_EQ(names.size(), 2u);  // neither counts the other as a leftover
  for (const std::string& name : names) {
    EXPECT_TRUE(name.starts_with("out.tmp-")) << name;
    EXPECT_EQ(name.size(), std::string("out.tmp-").size() + 16) << name;
  }
}

TEST(OutputFile, ATemporaryFileTakesNoNameThatIsThere) {
  const TestFolder folder;
  write_bytes(folder.path("precious"), "x");
  fs::create_symlink("precious", folder.path("link"));
  fs::create_symlink("nowhere", folder.path("dangling"));
  for (const char* name : {"precious", "link", "dangling"}) {
    EXPECT_ERROR(ExitCode::kFileIo, "cannot create OUT: File exists (EEXIST)",
                 File::create_temporary(folder.path(name), "OUT", nullptr));
  }
  EXPECT_EQ(read_bytes(folder.path("precious")), "x");
  EXPECT_FALSE(fs::exists(folder.path("nowhere")));
}

// Root could also rename or remove a device.
TEST(OutputFile, OnlyRegularFilesAreReplacedOrRemoved) {
  const TestFolder folder;
  const std::string path = folder.path("out");
  write_bytes(folder.path("precious"), "x");
  const auto refused = [&](const std::string& got) {
    SCOPED_TRACE(got);
    const std::string rest = path + ": expected a regular file or nothing under this name, got " + got + "; name ";
    EXPECT_ERROR(ExitCode::kFileIo, "cannot write " + rest, OutputFile(path, "report.output"));
    EXPECT_ERROR(ExitCode::kFileIo, "cannot remove " + rest, remove_file(path));
    struct stat info {};
    EXPECT_EQ(::lstat(path.c_str(), &info), 0) << "it is gone";
    fs::remove(path);
  };
  fs::create_directory(path);
  refused("a directory");
  fs::create_symlink("precious", path);
  refused("a symbolic link");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  refused("a pipe");
  if (::geteuid() == 0) {
    ASSERT_EQ(::mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 3)), 0);
    refused("a device");
  }
  OutputFile late(path, "report.output");
  late.write("text");
  fs::create_symlink("precious", path);
  EXPECT_ERROR(ExitCode::kFileIo, "cannot write " + path, late.commit());
  fs::remove(path);
  late.commit();
  EXPECT_EQ(read_bytes(path), "text");
  EXPECT_EQ(read_bytes(folder.path("precious")), "x");
}

TEST(OutputFile, AnotherFlagsFileIsRefused) {
  const TestFolder folder;
  write_bytes(folder.path("in"), "x");
  fs::create_symlink("in", folder.path("link"));
  const auto compare = [&](const std::string& output, const std::string& other) {
    require_other_file({"--html", output}, {"--rates", other});
  };
  EXPECT_ERROR(ExitCode::kUsage,
               "--html and --rates: expected two files, got out for both; name another file for --html",
               compare("out", "out"));
  EXPECT_ERROR(ExitCode::kUsage, "which are one; name another", compare(folder.path("link"), folder.path("in")));
  EXPECT_ERROR(ExitCode::kUsage, "a/../out and out, which are one", compare("a/../out", "out"));
  compare(folder.path("in"), folder.path("other"));
  compare("", "");
}

TEST(OutputFile, LeftoversOfTheSameFileGo) {
  const TestFolder folder;
  const std::vector<std::string> kept = {"out.tmp-0123456789abcde",   // shorter
                                         "out.tmp-0123456789abcdeX",  // no digit
                                         "out.tmp-12345",             // from an older program, or the user
                                         "other.tmp-0123456789abcdef", "out.0123456789abcdef"};
  for (const std::string& name : kept) write_bytes(folder.path(name), "x");
  write_bytes(folder.path("out.tmp-0123456789abcdef"), "x");
  write_bytes(folder.path("target"), "x");
  fs::create_symlink("target", folder.path("out.tmp-fedcba9876543210"));
  write_bytes(folder.path("out.tmp-00000000000000aa"), "x");
  const File living = Directory::open(folder.path()).open_file("out.tmp-00000000000000aa");
  ASSERT_EQ(living.try_lock(), LockState::kTaken);
  { const OutputFile out(folder.path("out"), "report.output"); }
  std::vector<std::string> expected = kept;
  expected.insert(expected.end(), {"out.tmp-fedcba9876543210", "out.tmp-00000000000000aa", "target"});
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names_in(folder.path()), expected);
}

TEST(OutputFile, AKilledWriterLeavesNothingForLong) {
  const TestFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    OutputFile out(folder.path("out"), "report.output");
    out.write("half");
    out.sync();
    kill_process();
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(names_in(folder.path()).size(), 1u);
  OutputFile out(folder.path("out"), "report.output");
  out.write("whole");
  out.commit();
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"out"}));
  EXPECT_EQ(read_bytes(folder.path("out")), "whole");
}

// Without locks no file counts as a leftover; if cleaning fails the file is still written.
TEST(OutputFile, IsWrittenAlsoWhereLeftoversCannotBeLookedAt) {
  for (const char* fault : {"leftovers.open:1+:eio", "leftovers.list:1+:eio", "leftovers.lock:1+:eio",
                            "leftovers.lock:1+:enolck", "leftovers.remove:1+:eio"}) {
    const TestFolder folder;
    write_bytes(folder.path("out.tmp-0123456789abcdef"), "x");
    arm_faults({parse_fault(fault)});
    OutputFile out(folder.path("out"), "report.output");
    out.write("text");
    out.commit();
    EXPECT_GT(faults_fired(), 0) << fault;
    disarm_faults();
    EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"out", "out.tmp-0123456789abcdef"})) << fault;
  }
}

}  // namespace
}  // namespace megalith

#include "core/base/files/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/files/fault.h"
#include "tests/support/test_folder.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

TEST(CheckpointFile, WritesAndReadsBackExactly) {
  const TestFolder folder;
  const Directory root = Directory::create(folder.path("a/b/c"));
  File out = root.create_file("data");
  out.write("hello ");
  out.write("world");
  EXPECT_EQ(out.size(), 11u);
  out.sync();
  out.close();
  root.sync();
  const File in = root.open_file("data");
  EXPECT_EQ(in.size(), 11u);
  std::array<std::byte, 5> part;
  in.read_at(6, part);
  EXPECT_EQ(static_cast<char>(part[0]), 'w');
  EXPECT_EQ(root.read_text("data", 11), "hello world");
  EXPECT_ERROR(ExitCode::kFormat, "at most 10 bytes", root.read_text("data", 10));
  EXPECT_ERROR(ExitCode::kFileIo, "it ends after 4 of them", in.read_at(7, part));
}

TEST(CheckpointFile, ErrorsNameOperationPathAndReason) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  EXPECT_ERROR(ExitCode::kFileIo, folder.path("none") + ": No such file or directory (ENOENT)", root.open_file("none"));
  root.create_file("taken").close();
  EXPECT_ERROR(ExitCode::kFileIo, "EEXIST", root.create_file("taken"));
  EXPECT_ERROR(ExitCode::kFileIo, "ENOTDIR", Directory::create(folder.path("taken/below")));
  EXPECT_ERROR(ExitCode::kFileIo, "cannot rename", root.rename("none", "other"));
  EXPECT_ERROR(ExitCode::kInternal, "single path component", root.open_file("../escape"));
  EXPECT_ERROR(ExitCode::kInternal, "single path component", root.open_file(".."));
}

TEST(CheckpointFile, FollowsNoLinkAndHangsOnNoPipe) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  write_bytes(folder.path("real"), "x");
  fs::create_directory(folder.path("real_folder"));
  fs::create_symlink(folder.path("real"), folder.path("link"));
  fs::create_directory_symlink(folder.path("real_folder"), folder.path("folder_link"));
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_ERROR(ExitCode::kFileIo, "symbolic links are not followed", root.open_file("link"));
  EXPECT_ERROR(ExitCode::kFileIo, "symbolic links are not followed", root.open_directory("folder_link"));
  EXPECT_ERROR(ExitCode::kFileIo, "not a regular file", root.open_file("pipe"));
  EXPECT_ERROR(ExitCode::kFileIo, "not a regular file", root.open_file("real_folder"));
  EXPECT_ERROR(ExitCode::kFileIo, "EEXIST", root.create_file("link"));
}

TEST(CheckpointFile, RemovesATreeWithoutFollowingLinks) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  fs::create_directories(folder.path("tree/inner"));
  fs::create_directory(folder.path("outside"));
  write_bytes(folder.path("outside/precious"), "x");
  write_bytes(folder.path("tree/inner/file"), "x");
  fs::create_directory_symlink(folder.path("outside"), folder.path("tree/link"));
  root.remove_tree("tree");
  EXPECT_FALSE(root.contains("tree"));
  EXPECT_EQ(read_bytes(folder.path("outside/precious")), "x");
}

TEST(CheckpointFile, ListsByNameWithTypes) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  write_bytes(folder.path("b"), "x");
  fs::create_directory(folder.path("a"));
  fs::create_symlink("b", folder.path("c"));
  for (int twice = 0; twice < 2; ++twice) {
    const auto entries = root.list();
    ASSERT_EQ(entries.size(), 3u);
    EXPECT_EQ(entries[0].name, "a");
    EXPECT_EQ(entries[0].type, EntryType::kDirectory);
    EXPECT_EQ(entries[1].type, EntryType::kFile);
    EXPECT_EQ(entries[2].type, EntryType::kOther);
  }
}

TEST(CheckpointFile, ExchangesFoldersAndLocksThem) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  EXPECT_TRUE(root.make_directory("a"));
  EXPECT_FALSE(root.make_directory("a"));
  EXPECT_TRUE(root.make_directory("b"));
  write_bytes(folder.path("a/inside"), "x");
  root.exchange("a", "b");
  EXPECT_EQ(read_bytes(folder.path("b/inside")), "x");
  {
    const Directory holder = root.open_directory("b");
    EXPECT_TRUE(holder.try_lock());
    EXPECT_FALSE(root.open_directory("b").try_lock());
  }
  EXPECT_TRUE(root.open_directory("b").try_lock());
  EXPECT_GT(root.free_bytes(), 0u);
}

TEST(CheckpointFile, AFileIsLockedByOneAndFreeAgain) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  {
    const File holder = root.open_to_lock("lock");
    EXPECT_EQ(holder.try_lock(), LockState::kTaken);
    EXPECT_EQ(root.open_to_lock("lock").try_lock(), LockState::kHeld);
  }
  EXPECT_EQ(root.open_to_lock("lock").try_lock(), LockState::kTaken);
  EXPECT_EQ(fs::file_size(folder.path("lock")), 0u);
  fs::create_symlink("lock", folder.path("link"));
  EXPECT_ERROR(ExitCode::kFileIo, "symbolic links are not followed", root.open_to_lock("link"));
}

TEST(CheckpointFile, AFileSystemWithoutLocksIsNoError) {
  const TestFolder folder;
  const Directory root = Directory::open(folder.path());
  const File file = root.open_to_lock("lock");
  const FaultScope scope("save.temporary");
  arm_faults({parse_fault("save.temporary.lock:1:enolck"), parse_fault("save.temporary.lock:2:enolck"),
              parse_fault("save.temporary.lock:3:eio")});
  EXPECT_EQ(file.try_lock(), LockState::kUnsupported);
  EXPECT_FALSE(root.try_lock());
  EXPECT_ERROR(ExitCode::kFileIo, "cannot lock " + folder.path("lock") + ": Input/output error (EIO)", file.try_lock());
  disarm_faults();
}

TEST(CheckpointFile, LooksAtWhatAPathNames) {
  const TestFolder folder;
  write_bytes(folder.path("file"), "abc");
  fs::create_symlink("file", folder.path("link"));
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  for (const char* name : {"file", "link"}) {
    const std::optional<PathInfo> found = look_at(folder.path(name));
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->type, EntryType::kFile) << name;
    EXPECT_EQ(found->size, 3u) << name;
  }
  EXPECT_EQ(look_at(folder.path())->type, EntryType::kDirectory);
  EXPECT_EQ(look_at(folder.path("pipe"))->type, EntryType::kOther);
  for (const char* name : {"none", "file/none"}) EXPECT_FALSE(look_at(folder.path(name))) << name;
  EXPECT_FALSE(look_at(""));
  EXPECT_ERROR(ExitCode::kFileIo, "(ENAMETOOLONG)", look_at(std::string(5000, 'x')));
}

// Opening either end of a named pipe waits for the other one: no path may make the program wait like that.
TEST(CheckpointFile, HangsOnNoPipeThatAPathNames) {
  const TestFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_ERROR(ExitCode::kFileIo, "cannot read " + pipe + ": a pipe, not a regular file; write what comes from it to a",
               File::open(pipe));
  EXPECT_ERROR(ExitCode::kFileIo, pipe + ": a pipe, not a regular file", read_whole_file(pipe, 10));
  EXPECT_ERROR(ExitCode::kFileIo, "cannot read " + pipe + ": a pipe that nobody writes to; start what writes to it",
               read_file_or_pipe(pipe, 10));
  EXPECT_ERROR(ExitCode::kFileIo, "(ENXIO); a pipe that nobody reads from", File::append(pipe));
  EXPECT_ERROR(ExitCode::kFileIo, "(ENXIO); a pipe that nobody reads from", File::create(pipe));
  EXPECT_ERROR(ExitCode::kFileIo, "/dev/null: a device or a socket, not a regular file", File::open("/dev/null"));
  EXPECT_ERROR(ExitCode::kFileIo, folder.path() + ": a directory, not a regular file",
               read_whole_file(folder.path(), 1));
}

TEST(CheckpointFile, ReadsAPipeToItsEnd) {
  const TestFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);  // lets the writer start
  File writer = File::append(pipe);
  std::string want(100'000, 'x');  // more than a pipe holds: each end has to wait for the other
  std::thread writes([&] {
    for (const char part : {'a', 'b'}) {
      want.front() = part;
      writer.write(want.substr(0, 50'000));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a pause is no end
    }
    writer = File();
  });
  const std::string got = read_file_or_pipe(pipe, 1'000'000);
  writes.join();
  ::close(reader);
  ASSERT_EQ(got.size(), 100'000u);
  EXPECT_EQ(got[0], 'a');
  EXPECT_EQ(got[50'000], 'b');
  EXPECT_EQ(read_file_or_pipe("/dev/null", 10), "");
  EXPECT_ERROR(ExitCode::kFormat, "at most 10 bytes", read_file_or_pipe("/dev/zero", 10));
}

TEST(CheckpointFile, ASmallFileIsReadToItsLimitAlone) {
  const TestFolder folder;
  const std::string path = folder.path("file");
  write_bytes(path, "12345");
  EXPECT_EQ(read_whole_file(path, 5), "12345");
  EXPECT_ERROR(ExitCode::kFormat, path + ": expected at most 4 bytes, got 5; check the path", read_whole_file(path, 4));
  fs::resize_file(path, std::uint64_t{12} << 30);  // a hole: it uses no disk space
  for (const auto read : {read_whole_file, read_file_or_pipe})
    EXPECT_ERROR(ExitCode::kFormat, "expected at most 100 bytes, got 12884901888", read(path, 100));
  EXPECT_ERROR(ExitCode::kFileIo, folder.path() + ": a directory, not a regular file",
               read_file_or_pipe(folder.path(), 10));

  write_bytes(path, "12");  // it grows after its size was looked at
  File file = File::open(path);
  write_bytes(path, "1234567890");
  EXPECT_ERROR(ExitCode::kFormat, "expected at most 9 bytes, got more", file.read_all(9));
  File shorter = File::open(path);
  write_bytes(path, "123");
  EXPECT_EQ(shorter.read_all(10), "123");
}

TEST(CheckpointFile, AFileBelowFoldersMayBeALinkWithinThem) {
  const TestFolder folder;
  for (const char* name : {"in", "in/deep", "in-too", "other"}) fs::create_directory(folder.path(name));
  for (const char* name : {"in/file", "in/deep/file", "in-too/file", "other/file"})
    write_bytes(folder.path(name), name);
  const std::vector<std::string> roots = {folder.path("in"), folder.path("other")};
  const auto read = [&](const std::string& target) {
    fs::remove(folder.path("in/link"));
    fs::create_symlink(target, folder.path("in/link"));
    return read_file_below(folder.path("in/link"), roots, 100);
  };
  EXPECT_EQ(read_file_below(folder.path("in/file"), roots, 100), "in/file");
  EXPECT_EQ(read("file"), "in/file");
  EXPECT_EQ(read("deep/../deep/file"), "in/deep/file");
  EXPECT_EQ(read("../other/file"), "other/file");
  EXPECT_EQ(read(folder.path("other/file")), "other/file");
  EXPECT_ERROR(ExitCode::kFileIo,
               "cannot read " + folder.path("in/link") + ": a link to " + real_path(folder.path("in-too/file")) +
                   ", outside of its folder; put the file itself there",
               read("../in-too/file"));
  for (const char* target : {"/etc/passwd", "/proc/self/environ", "/proc/self/cmdline"})
    EXPECT_ERROR(ExitCode::kFileIo, "outside of its folder", read(target));
  fs::create_directory_symlink(folder.path("in-too"), folder.path("in/out"));  // a folder within the path
  EXPECT_ERROR(ExitCode::kFileIo, "outside of its folder", read_file_below(folder.path("in/out/file"), roots, 100));
  fs::create_directory_symlink(folder.path("in"), folder.path("same"));  // the folder itself may be a link
  EXPECT_EQ(read_file_below(folder.path("same/file"), std::vector{folder.path("same")}, 100), "in/file");
  EXPECT_ERROR(ExitCode::kFormat, "at most 3 bytes", read_file_below(folder.path("in/file"), roots, 3));
}

TEST(CheckpointFile, APathEndsAtNoNul) {
  const TestFolder folder;
  write_bytes(folder.path("file"), "x");
  const std::string path = folder.path("file") + std::string(1, '\0') + ".toml";
  const std::string reported = "cannot look for a path with a NUL byte: " + folder.path("file") + "\\x00.toml; check";
  EXPECT_ERROR(ExitCode::kFileIo, reported, File::open(path));
  EXPECT_ERROR(ExitCode::kFileIo, reported, read_file_or_pipe(path, 10));
  EXPECT_ERROR(ExitCode::kFileIo, reported, look_at(path));
  EXPECT_ERROR(ExitCode::kFileIo, reported, Directory::open(path));
  EXPECT_ERROR(ExitCode::kFileIo, reported, make_directories(path));
  EXPECT_ERROR(ExitCode::kFileIo, reported, rename_file(folder.path("file"), path));
  EXPECT_EQ(read_bytes(folder.path("file")), "x");
}

TEST(CheckpointFile, MakesDirectoriesWithTheirParents) {
  const TestFolder folder;
  for (int i = 0; i < 2; ++i) {
    make_directories(folder.path("a/b//c/"));
    EXPECT_TRUE(fs::is_directory(folder.path("a/b/c")));
  }
  write_bytes(folder.path("file"), "");
  EXPECT_ERROR(ExitCode::kFileIo, "cannot create directory " + folder.path("file/a"),
               make_directories(folder.path("file/a")));
}

TEST(CheckpointFile, ObserverSeesEachOperationAndCanFailIt) {
  const TestFolder folder;
  std::string seen;
  const FileObserver observer = [&](const FileOperation& operation) {
    seen += std::string(operation.name) + " ";
    if (operation.name == "sync") fail({.code = ExitCode::kFileIo, .subject = "injected"});
  };
  const Directory root = Directory::open(folder.path(), &observer);
  File file = root.create_file("data");
  file.write("abc");
  EXPECT_ERROR(ExitCode::kFileIo, "injected", file.sync());
  EXPECT_EQ(seen, "open create write sync ");
}

}  // namespace
}  // namespace megalith

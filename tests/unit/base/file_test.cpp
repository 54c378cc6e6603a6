#include "core/base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "tests/unit/checkpoint/expect_error.h"
#include "tests/unit/checkpoint/test_folder.h"

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

#include "core/base/files/line_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "tests/support/test_folder.h"
#include "tests/unit/checkpoint/expect_error.h"

namespace megalith {
namespace {

using Lines = std::vector<std::string>;

// "TEXT" for a line, "TEXT..." for one that is too long; with "|" for the last one of a file that breaks off.
Lines lines_of(LineReader& reader) {
  Lines lines;
  while (const std::optional<LineReader::Line> line = reader.next()) {
    lines.push_back(std::string(line->text) + (line->is_too_long ? "..." : ""));
    if (!reader.has_end()) lines.back() += "|";
    EXPECT_EQ(reader.number(), std::ssize(lines));
  }
  return lines;
}

class LineReading : public testing::Test {
 protected:
  Lines lines(const std::string& bytes, const LineReader::Limits& limits = {.line_bytes = 4}) {
    write_bytes(folder_ / "f", bytes);
    LineReader reader(folder_ / "f", limits);
    return lines_of(reader);
  }
  const TestFolder folder_;
};

TEST_F(LineReading, LinesAndHowTheyEnd) {
  EXPECT_EQ(lines(""), Lines{});
  EXPECT_EQ(lines("\n"), Lines{""});
  EXPECT_EQ(lines("a\n\nbc\n"), (Lines{"a", "", "bc"}));
  EXPECT_EQ(lines("a\r\nb"), (Lines{"a\r", "b|"}));
  EXPECT_EQ(lines(std::string("\0\n\0", 3)), (Lines{std::string(1, '\0'), std::string(1, '\0') + "|"}));
}

TEST_F(LineReading, ALongLineIsCutAndTheNextIsWhole) {
  EXPECT_EQ(lines("1234\n12345\n6\n"), (Lines{"1234", "1234...", "6"}));
  EXPECT_EQ(lines("12345"), Lines{"1234...|"});
  EXPECT_EQ(lines(std::string(400000, 'x')), Lines{"xxxx...|"});
  EXPECT_EQ(lines("1234"), Lines{"1234|"});
  // Lines around the ends of the blocks that are read, of 128 KiB.
  for (const std::size_t bytes : {131071, 131072, 131073, 400000}) {
    const std::string line(bytes, 'x');
    EXPECT_EQ(lines(line + "\nend\n"), (Lines{"xxxx...", "end"})) << bytes;
    EXPECT_EQ(lines(line + "\nend", {.line_bytes = bytes}), (Lines{line, "end|"})) << bytes;
    EXPECT_EQ(lines("a\n" + line + "\nend", {.line_bytes = bytes - 1}), (Lines{"a", line.substr(1) + "...", "end|"}))
        << bytes;
  }
}

TEST_F(LineReading, TheBeginningIsStillToCome) {
  write_bytes(folder_ / "f", "abc\nd\n");
  LineReader reader(folder_ / "f", {.line_bytes = 4});
  EXPECT_EQ(reader.beginning(2), "ab");
  EXPECT_EQ(reader.beginning(100), "abc\nd\n");
  EXPECT_EQ(lines_of(reader), (Lines{"abc", "d"}));
  EXPECT_EQ(reader.beginning(1), "");
}

TEST_F(LineReading, TheSizeIsLookedAtBeforeAFileIsRead) {
  EXPECT_EQ(lines("1\n2\n", {.line_bytes = 4, .file_bytes = 4}), (Lines{"1", "2"}));
  EXPECT_ERROR(ExitCode::kFormat, folder_ / "f" + ": expected at most 3 bytes, got more; check the path",
               LineReader(folder_ / "f", {.line_bytes = 4, .file_bytes = 3}));
}

TEST_F(LineReading, AFileThatGrowsIsReadToItsLimit) {
  write_bytes(folder_ / "f", "1\n");
  LineReader reader(folder_ / "f", {.line_bytes = 4, .file_bytes = 5});
  write_bytes(folder_ / "f", "1\n2\n3\n");
  EXPECT_ERROR(ExitCode::kFormat, "expected at most 5 bytes, got more", reader.next());
}

TEST_F(LineReading, APipeAndADeviceWithoutAnEnd) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  LineReader nobody(pipe, {.line_bytes = 4});
  EXPECT_ERROR(ExitCode::kFileIo, pipe + ": a pipe that nobody writes to", nobody.next());

  LineReader reader(pipe, {.line_bytes = 100, .file_bytes = 1'000'000});
  File writer = File::append(pipe);
  std::thread writes([&] {  // far more than a pipe holds
    for (int i = 0; i < 20'000; ++i) writer.write("line " + std::to_string(i) + "\n");
    writer = File();
  });
  const Lines got = lines_of(reader);
  writes.join();
  ASSERT_EQ(got.size(), 20'000u);
  EXPECT_EQ(got.front(), "line 0");
  EXPECT_EQ(got.back(), "line 19999");

  LineReader zeros("/dev/zero", {.line_bytes = 1000, .file_bytes = 1'000'000});
  EXPECT_EQ(zeros.next()->text.size(), 1000u);
  EXPECT_ERROR(ExitCode::kFormat, "/dev/zero: expected at most 1000000 bytes, got more", zeros.next());
  EXPECT_ERROR(ExitCode::kFileIo, "a directory, not a regular file", LineReader(folder_.path(), {.line_bytes = 1}));
}

}  // namespace
}  // namespace megalith

#include "core/data/document_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

class DocumentReading : public testing::Test {
 protected:
  std::vector<std::string> documents(const std::string& name, const std::string& bytes,
                                     const DocumentOptions& options = {}) {
    write_bytes(folder_ / name, bytes);
    std::vector<std::string> found;
    for_each_document(folder_ / name, options, [&](std::string_view text) { found.emplace_back(text); });
    return found;
  }
  std::string json_error(const std::string& bytes, const DocumentOptions& options = {}) {
    return error_of(ExitCode::kFormat, [&] { documents("x.jsonl", bytes, options); });
  }

  TestFolder folder_;
};

TEST_F(DocumentReading, WholeTextFile) {
  EXPECT_THAT(documents("x.txt", "one\n\ntwo\n"), ElementsAre("one\n\ntwo\n"));
  EXPECT_THAT(documents("x.txt", "no end of line"), ElementsAre("no end of line"));
  EXPECT_THAT(documents("x.txt", " \n\n"), ElementsAre());
  EXPECT_THAT(documents("x.txt", ""), ElementsAre());
}

// Rejected by content under any name, and by name with any content.
TEST_F(DocumentReading, PackedFilesAndTablesAreRefused) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"xz",
       std::string("\xfd"
                   "7zXZ\0",
                   6),
       "xz data"},
      {"bz2", "BZh91AY&SY", "bzip2 data"},
      {"lz4", "\x04\x22\x4d\x18", "LZ4 data"},
      {"zip", "PK\x03\x04", "a ZIP archive"},
      {"parquet", "PAR1", "a Parquet table"},
      {"arrow", "ARROW1", "an Arrow table"},
  };
  for (const auto& [ending, bytes, name] : cases) {
    for (const std::string file : {"x.txt", "x.jsonl"}) {
      EXPECT_THAT(
          error_of(ExitCode::kFormat, [&] { documents(file, bytes); }),
          testing::AllOf(HasSubstr(file + ": expected text or JSON lines, got " + name + "; "), HasSubstr(" first")));
    }
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { documents("x.jsonl." + ending, ""); }),
                HasSubstr("x.jsonl." + ending + ": expected text or JSON lines, got the name of " + name + "; "));
  }
  for (const std::string file : {"x.tgz", "x.tar.gz", "x.tar"}) {
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { documents(file, "text"); }),
                HasSubstr("got the name of a tar archive; unpack it first: tar -xf "));
  }
  EXPECT_THAT(documents("x.txt", "BZh9 is how bzip2 begins"), ElementsAre("BZh9 is how bzip2 begins"));
  EXPECT_THAT(documents("gz", "PAR"), ElementsAre("PAR"));
}

TEST_F(DocumentReading, DocumentStart) {
  const DocumentOptions options{.document_start = {"Chapter", "BOOK"}};
  EXPECT_THAT(documents("x.txt", "Title\n\nChapter 1\na Chapter\nChapter 2\nb\nBOOK\n c", options),
              ElementsAre("Title\n\n", "Chapter 1\na Chapter\n", "Chapter 2\nb\n", "BOOK\n c"));
  EXPECT_THAT(documents("x.txt", "Chapter 1\na", options), ElementsAre("Chapter 1\na"));
}

TEST_F(DocumentReading, DocumentSeparator) {
  EXPECT_THAT(documents("x.txt", "a\nb\n\n\nc\r\n\r\nd\n", {.document_separator = ""}),
              ElementsAre("a\nb\n", "c\r\n", "d\n"));
  EXPECT_THAT(documents("x.txt", "a\n***\nb ***\n***\n", {.document_separator = "***"}), ElementsAre("a\n", "b ***\n"));
}

TEST_F(DocumentReading, JsonLines) {
  EXPECT_THAT(documents("x.jsonl",
                        "{\"text\": \"one\"}\n\n"
                        "{\"id\": 3, \"meta\": {\"text\": null, \"l\": [1.5, {\"text\": 2}]}, "
                        "\"text\": \"tw\\u00f6 \\\"quoted\\\"\\n\"}\r\n"
                        "{\"text\": \"\"}\n"
                        "{\"text\": \"last\", \"end\": true}"),
              ElementsAre("one", "tw\xc3\xb6 \"quoted\"\n", "last"));
  EXPECT_THAT(documents("x.json", "{\"body\": \"b\", \"text\": 1}", {.json_key = "body"}), ElementsAre("b"));
}

TEST_F(DocumentReading, BadJsonLinesAreNamedWithTheirNumber) {
  const std::string good = "{\"text\": \"one\"}\n";
  EXPECT_THAT(json_error(good + "\n{\"text\": \"a"), HasSubstr("x.jsonl:3: expected a JSON object"));
  EXPECT_THAT(json_error(good + "{\"text\": \"a\"} x\n"), HasSubstr("x.jsonl:2"));
  EXPECT_THAT(json_error(good + "{\"text\": 5}"), HasSubstr("got a number under 'text'"));
  EXPECT_THAT(json_error(good + "{\"text\": null}"), HasSubstr("got null under 'text'"));
  EXPECT_THAT(json_error(good + "{\"text\": [\"a\"]}"), HasSubstr("got an array under 'text'"));
  EXPECT_THAT(json_error(good + "{\"text\": {\"text\": \"a\"}}"), HasSubstr("got an object under 'text'"));
  EXPECT_THAT(json_error(good + "{\"body\": \"a\"}"), HasSubstr("got an object without 'text'"));
  EXPECT_THAT(json_error(good + "{\"a\": {\"text\": \"a\"}}"), HasSubstr("got an object without 'text'"));
  EXPECT_THAT(json_error(good + "[\"text\"]"), HasSubstr("got an array"));
  EXPECT_THAT(json_error("\"text\""), HasSubstr("x.jsonl:1"));
  EXPECT_THAT(json_error("17"), HasSubstr("got a number"));
  EXPECT_THAT(json_error("{\"text\": NaN}"), HasSubstr("x.jsonl:1"));
  EXPECT_THAT(json_error("{\"text\": \"\xff\"}"), HasSubstr("x.jsonl:1"));
  EXPECT_THAT(json_error("{\"text\": \"a\", \"n\": 1e999}"), HasSubstr("x.jsonl:1"));
}

TEST_F(DocumentReading, DeepNestingIsRefused) {
  const auto nested = [](int depth) {
    const auto size = static_cast<std::size_t>(depth);
    return "{\"text\": \"a\", \"n\": " + std::string(size, '[') + std::string(size, ']') + "}";
  };
  EXPECT_THAT(documents("x.jsonl", nested(31)), ElementsAre("a"));
  EXPECT_THAT(json_error(nested(32)), HasSubstr("got deeper nesting"));
  EXPECT_THAT(json_error(nested(1000000)), HasSubstr("got deeper nesting"));
}

TEST_F(DocumentReading, JsonLinesMayComeFromAPipe) {
  const std::string pipe = folder_ / "p.jsonl";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  check_document_file(pipe);                                       // reads nothing, so the writer may come later
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);  // lets the writer start
  std::ofstream out(pipe);
  std::thread writer([&] {
    for (int i = 0; i < 5'000; ++i) out << "{\"text\": \"document " << i << "\"}\n";
    out.close();
  });
  std::vector<std::string> found;
  for_each_document(pipe, {}, [&](std::string_view text) { found.emplace_back(text); });
  writer.join();
  ::close(reader);
  ASSERT_EQ(found.size(), 5'000u);
  EXPECT_EQ(found.back(), "document 4999");
}

TEST_F(DocumentReading, SizesAndKindsOfFiles) {
  const auto refused = [&](ExitCode code, const std::string& name) {
    return error_of(code, [&] { for_each_document(folder_ / name, {}, [](std::string_view) {}); });
  };
  for (const char* name : {"x.jsonl", "x.txt"}) {
    write_bytes(folder_ / name, "");
    std::filesystem::resize_file(folder_ / name, std::uint64_t{12} << 30);  // a hole: it uses no disk space
  }
  EXPECT_THAT(refused(ExitCode::kFormat, "x.jsonl"), HasSubstr("x.jsonl:1: expected a JSON object of at most 64 MiB"));
  EXPECT_THAT(
      refused(ExitCode::kFormat, "x.txt"),
      HasSubstr("x.txt: expected documents of at most 2147483648 bytes, got one of 12884901888 bytes at byte 0"));
  std::filesystem::create_symlink("/dev/zero", folder_ / "zero.jsonl");
  std::filesystem::create_symlink("/dev/zero", folder_ / "zero.txt");
  std::filesystem::create_directory(folder_ / "d.jsonl");
  EXPECT_THAT(refused(ExitCode::kFormat, "zero.jsonl"), HasSubstr("zero.jsonl:1: "));
  EXPECT_THAT(refused(ExitCode::kFileIo, "zero.txt"), HasSubstr("a device or a socket, not a regular file"));
  EXPECT_THAT(refused(ExitCode::kFileIo, "d.jsonl"), HasSubstr("a directory, not a regular file"));
}

TEST_F(DocumentReading, FileThatIsNotThere) {
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { for_each_document(folder_ / "no.txt", {}, [](std::string_view) {}); }),
              HasSubstr("no.txt"));
}

TEST_F(DocumentReading, SkipsTheAllowedBadLinesOfAllFiles) {
  write_bytes(folder_ / "a.jsonl",
              "{\"text\": \"1\"}\nnothing\n{\"text\": \"2\"}\n{\"content\": \"x\"}\n{\"text\": \"3\"}\n");
  write_bytes(folder_ / "b.jsonl", "\n{\"text\": \"4\"}\n{\"text\": \"long\"}\n{\"text\": 5}\n");
  const auto read = [&](BadLines& bad) {
    std::vector<std::string> found;
    for (const char* name : {"a.jsonl", "b.jsonl"}) {
      const auto visit = [&](std::string_view text) {
        if (text == "long") refuse_format("text", "a digit", "more");
        found.emplace_back(text);
      };
      for_each_document(folder_ / name, {}, visit, &bad);
    }
    return found;
  };
  BadLines all(4);
  EXPECT_THAT(read(all), ElementsAre("1", "2", "3", "4"));
  EXPECT_EQ(all.skipped(), 4);
  EXPECT_THAT(all.first(), HasSubstr("a.jsonl:2: expected a JSON object"));
  BadLines three(3);
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { read(three); }),
              testing::AllOf(HasSubstr("b.jsonl:4: expected a JSON object"),
                             HasSubstr("; --max-bad-lines 3 were skipped before, the first: "),
                             HasSubstr("a.jsonl:2: expected")));
  BadLines two(2);  // an unusable text is a bad line too, and reported by its line
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { read(two); }),
              HasSubstr("b.jsonl:3: text: expected a digit, got more"));
  BadLines none;
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { read(none); }),
              testing::AllOf(HasSubstr("a.jsonl:2: "), testing::EndsWith("skip such lines with --max-bad-lines")));
}

// They are about lines: an error of another kind, or of a file without lines, ends the reading.
TEST_F(DocumentReading, OtherErrorsAreNoBadLines) {
  write_bytes(folder_ / "a.jsonl", "{\"text\": \"1\"}\n");
  write_bytes(folder_ / "a.txt", "1");
  BadLines bad(9);
  const auto disk_full = [](std::string_view) { throw Error(ExitCode::kFileIo, "disk full"); };
  EXPECT_EQ(error_of(ExitCode::kFileIo, [&] { for_each_document(folder_ / "a.jsonl", {}, disk_full, &bad); }),
            "disk full");
  const auto refuse = [](std::string_view) { throw Error(ExitCode::kFormat, "no text"); };
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { for_each_document(folder_ / "a.txt", {}, refuse, &bad); }),
              HasSubstr("a.txt: document 1: no text"));
  EXPECT_EQ(bad.skipped(), 0);
}

}  // namespace
}  // namespace megalith

#include "core/data/unpacked_file.h"

#include <fmt/format.h>

#include <optional>

#include "core/data/document_reader.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"
#include "tests/unit/data/packed_files.h"

namespace megalith {
namespace {

using Pack = std::string (*)(std::string_view);
constexpr Pack kPacks[] = {gzip, zstd};

// Text of several blocks that packs badly.
std::string long_text() {
  std::string text;
  for (std::uint32_t i = 0; i < 60'000; ++i) text += fmt::format("{} {}\n", i, i * 2654435761u);
  return text;
}

class UnpackedFiles : public testing::Test {
 protected:
  std::string read(const std::string& bytes, std::size_t step = 1 << 20) {
    write_bytes(folder_ / "f", bytes);
    UnpackedFile file(folder_ / "f");
    std::string text;
    for (;;) {
      std::string part(step, '\0');
      const std::size_t got = file.read(std::as_writable_bytes(std::span(part)));
      text += part.substr(0, got);
      if (got < step) break;
    }
    EXPECT_EQ(file.bytes_read(), bytes.size());
    return text;
  }
  std::string error_of_read(const std::string& bytes) {
    return error_of(ExitCode::kFormat, [&] { read(bytes); });
  }
  std::vector<std::string> documents(const std::string& name, const std::string& bytes,
                                     const DocumentOptions& options = {}) {
    write_bytes(folder_ / name, bytes);
    check_document_file(folder_ / name);
    std::vector<std::string> found;
    for_each_document(folder_ / name, options, [&](std::string_view text) { found.emplace_back(text); });
    return found;
  }

  TestFolder folder_;
};

TEST_F(UnpackedFiles, EveryFormatGivesTheText) {
  const std::string text = long_text();
  ASSERT_GT(text.size(), 900'000u);
  EXPECT_TRUE(read(text) == text);
  EXPECT_EQ(read(""), "");
  for (const Pack pack : kPacks) {
    EXPECT_TRUE(read(pack(text)) == text);
    EXPECT_TRUE(read(pack(text), 4097) == text);
    EXPECT_TRUE(read(pack(text), text.size()) == text) << "the text ends with the buffer";
    EXPECT_EQ(read(pack("")), "");
  }
}

TEST_F(UnpackedFiles, MembersInSequenceAreOneText) {
  const std::string text = long_text();
  for (const Pack pack : kPacks)
    EXPECT_TRUE(read(pack("a\n") + pack("") + pack(text) + pack("end")) == "a\n" + text + "end");
  const std::string skipped("\x51\x2a\x4d\x18\x03\0\0\0abc", 11);  // a frame to skip, as pzstd writes
  EXPECT_EQ(read(skipped + zstd("text")), "text");
}

TEST_F(UnpackedFiles, IncompleteDataIsAnErrorWithItsOffset) {
  for (const Pack pack : kPacks) {
    const std::string packed = pack(long_text()), two = pack("a") + pack("b");
    for (const std::size_t bytes : {std::size_t{4}, std::size_t{15}, packed.size() / 2, packed.size() - 1}) {
      EXPECT_THAT(error_of_read(packed.substr(0, bytes)),
                  HasSubstr(fmt::format("got an end within it at byte {}; copy or pack the file again", bytes)));
    }
    EXPECT_THAT(error_of_read(two.substr(0, two.size() - 1)),
                HasSubstr(fmt::format("got an end within it at byte {}", two.size() - 1)));
  }
}

TEST_F(UnpackedFiles, DamagedDataIsAnErrorWithItsOffset) {
  for (const Pack pack : kPacks) {
    const std::string packed = pack(long_text());
    std::string damaged = packed;
    const std::size_t at = packed.size() / 2;
    for (std::size_t i = at; i < at + 64; ++i) damaged[i] = static_cast<char>(~damaged[i]);
    const std::string error = error_of_read(damaged);
    EXPECT_THAT(error, testing::AllOf(HasSubstr("expected complete "), HasSubstr("got damaged data at byte ")));
    const std::string number = error.substr(error.find("at byte ") + 8);
    if (pack == static_cast<Pack>(gzip)) {
      EXPECT_GE(std::stoull(number), at) << error;
    }
    EXPECT_LE(std::stoull(number), packed.size()) << error;
    const std::string after = error_of_read(packed + "garbage");
    EXPECT_THAT(std::stoull(after.substr(after.find("at byte ") + 8)),
                testing::AllOf(testing::Ge(packed.size()), testing::Le(packed.size() + 4)));
    damaged = packed;
    damaged[packed.size() - 2] ^= 1;  // of the checksum or the length
    EXPECT_THAT(error_of_read(damaged), HasSubstr("damaged data at byte "));
  }
}

TEST_F(UnpackedFiles, DocumentsOfPackedFiles) {
  const DocumentOptions chapters{.document_start = {"Chapter"}}, stars{.document_separator = "***"};
  const std::string text = "Title\r\nChapter 1\na\nChapter 2\nb", split = "a\n***\n \n***\nb\n***\n";
  const std::string lines = "{\"text\": \"a\"}\n\n{\"text\": \"b\"}";
  for (const Pack pack : kPacks) {
    EXPECT_THAT(documents("x.txt", pack(text)), ElementsAre(text)) << "under any name";
    EXPECT_THAT(documents("x.txt.gz", pack(text), chapters),
                ElementsAre("Title\r\n", "Chapter 1\na\n", "Chapter 2\nb"));
    EXPECT_THAT(documents("x", pack(split), stars), ElementsAre("a\n", "b\n"));
    EXPECT_THAT(documents("x", pack("\n")), ElementsAre());
    for (const char* name : {"x.jsonl", "x.jsonl.gz", "x.jsonl.zst", "x.json.zstd"})
      EXPECT_THAT(documents(name, pack(lines)), ElementsAre("a", "b")) << name;
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { documents("x.jsonl.gz", pack("{\"text\": \"a\"}\n3\n")); }),
                HasSubstr("x.jsonl.gz:2: "));
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { documents("x.gz", pack("PAR1")); }), HasSubstr("a Parquet table"));
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { documents("x.gz", pack(pack("a"))); }),
                HasSubstr("got data that is packed twice"));
  }
  EXPECT_THAT(documents("x.jsonl.gz", lines), ElementsAre("a", "b")) << "plain, whatever its name";
  EXPECT_THAT(documents("x.gz", "plain"), ElementsAre("plain"));
}

// The documents ahead of the damage come first.
TEST_F(UnpackedFiles, DamageEndsTheReading) {
  std::string lines;
  for (int i = 0; i < 100'000; ++i) lines += fmt::format("{{\"text\": \"{}\"}}\n", i * 7919LL);
  const std::string packed = zstd(lines);
  write_bytes(folder_ / "x.jsonl", packed.substr(0, packed.size() / 2));
  std::size_t documents = 0;
  DocumentReader reader({folder_ / "x.jsonl", folder_ / "x.jsonl"}, {});
  EXPECT_EQ(reader.bytes_of_files(), packed.size() / 2 * 2);
  std::optional<Error> error;
  for (std::vector<DocumentChunk> chunks = reader.read(1 << 16); !chunks.empty(); chunks = reader.read(1 << 16)) {
    for (const DocumentChunk& chunk : chunks) {
      EXPECT_FALSE(error) << "more after the error";
      documents += chunk.documents.size();
      error = chunk.error;
    }
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ExitCode::kFormat);
  EXPECT_GT(documents, 1'000u);
  EXPECT_EQ(reader.bytes_read(), packed.size() / 2);
}

}  // namespace
}  // namespace megalith

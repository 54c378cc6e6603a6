#include "core/data/indexed_dataset.h"

#include <cstring>
#include <limits>
#include <numeric>

#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens read_all(const IndexedDataset& data, std::int64_t sequence) {
  Tokens tokens(static_cast<std::size_t>(data.sequence_length(sequence)));
  data.read(sequence, 0, tokens);
  return tokens;
}

template <class Value>
void put(std::string& bytes, std::size_t at, Value value) {
  std::memcpy(bytes.data() + at, &value, sizeof(Value));
}

// Four documents of 3, 0, 1 and 5 tokens, u16: the index is 34 + 12 x 4 + 8 x 5 = 122 bytes.
void write_small(const std::string& prefix, TokenType type = TokenType::kU16) {
  IndexedDatasetWriter writer(prefix, type);
  writer.add_document(Tokens{1, 2, 3});
  writer.add_document(Tokens{});
  writer.add_document(Tokens{40});
  writer.add_document(Tokens{5, 6, 7, 8, 100});
  writer.commit();
}

TEST(IndexedDataset, ReadsWhatWasWrittenInEveryIntegerType) {
  const TestFolder folder;
  for (const TokenType type :
       {TokenType::kU8, TokenType::kI8, TokenType::kI16, TokenType::kU16, TokenType::kI32, TokenType::kI64}) {
    SCOPED_TRACE(to_string(type));
    write_small(folder / "d", type);
    const IndexedDataset data = IndexedDataset::open(folder / "d");
    EXPECT_EQ(data.token_type(), type);
    EXPECT_EQ(data.num_sequences(), 4);
    EXPECT_EQ(data.num_documents(), 4);
    EXPECT_EQ(data.num_tokens(), 9);
    EXPECT_EQ(std::filesystem::file_size(folder / "d.bin"), static_cast<std::uintmax_t>(9 * token_bytes(type)));
    EXPECT_THAT(read_all(data, 0), ElementsAre(1, 2, 3));
    EXPECT_THAT(read_all(data, 1), ElementsAre());
    EXPECT_THAT(read_all(data, 2), ElementsAre(40));
    Tokens part(2);
    data.read(3, 3, part);
    EXPECT_THAT(part, ElementsAre(8, 100));
  }
}

TEST(IndexedDataset, BytesAreMegatrons) {
  const TestFolder folder;
  IndexedDatasetWriter writer(folder / "d", TokenType::kU16);
  writer.add_document(Tokens{258, 65535});
  writer.add_document(Tokens{7});
  writer.commit();
  EXPECT_EQ(read_bytes(folder / "d.bin"), std::string("\x02\x01\xff\xff\x07\x00", 6));
  EXPECT_EQ(read_bytes(folder / "d.idx"),
            std::string("MMIDIDX\0\0"
                        "\1\0\0\0\0\0\0\0"                  // version
                        "\10"                               // u16
                        "\2\0\0\0\0\0\0\0"                  // sequences
                        "\3\0\0\0\0\0\0\0"                  // document indices
                        "\2\0\0\0\1\0\0\0"                  // lengths
                        "\0\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0"  // offsets
                        "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0",
                        34 + 12 * 2 + 8 * 3));
}

TEST(IndexedDataset, TokenTypeFollowsVocabulary) {
  EXPECT_EQ(token_type_for_vocab(257), TokenType::kU16);
  EXPECT_EQ(token_type_for_vocab(65499), TokenType::kU16);
  EXPECT_EQ(token_type_for_vocab(65500), TokenType::kI32);
}

TEST(IndexedDataset, DocumentOfSeveralSequences) {
  const TestFolder folder;
  write_small(folder / "d");
  std::string index = read_bytes(folder / "d.idx");
  put(index, 82 + 8 * 2, std::int64_t{3});  // the document indices are 0, 1, 3, 3, 4
  write_bytes(folder / "d.idx", index);
  const IndexedDataset data = IndexedDataset::open(folder / "d");
  EXPECT_EQ(data.document_begin(1), 1);
  EXPECT_EQ(data.document_begin(2), 3);
  EXPECT_EQ(data.document_begin(3), 3);
  EXPECT_EQ(data.document_begin(4), 4);
}

TEST(IndexedDataset, WithoutSequences) {
  const TestFolder folder;
  IndexedDatasetWriter(folder / "d", TokenType::kI32).commit();
  const IndexedDataset data = IndexedDataset::open(folder / "d");
  EXPECT_EQ(data.num_sequences(), 0);
  EXPECT_EQ(data.num_documents(), 0);
  EXPECT_EQ(data.num_tokens(), 0);
}

TEST(IndexedDataset, TruncatedIndexIsFoundAtEveryByte) {
  const TestFolder folder;
  write_small(folder / "d");
  const std::string index = read_bytes(folder / "d.idx");
  ASSERT_EQ(index.size(), 122u);
  for (std::size_t size = 0; size < index.size(); ++size) {
    write_bytes(folder / "d.idx", index.substr(0, size));
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { IndexedDataset::open(folder / "d"); }),
                testing::AllOf(HasSubstr("d.idx: size"), HasSubstr(std::to_string(size) + " bytes")));
  }
  write_bytes(folder / "d.idx", index + '\0');
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { IndexedDataset::open(folder / "d"); }), HasSubstr("123 bytes"));
}

TEST(IndexedDataset, TruncatedTokensAreFoundAtEveryByte) {
  const TestFolder folder;
  write_small(folder / "d");
  const std::string tokens = read_bytes(folder / "d.bin");
  ASSERT_EQ(tokens.size(), 18u);
  for (std::size_t size = 0; size < tokens.size(); ++size) {
    write_bytes(folder / "d.bin", tokens.substr(0, size));
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { IndexedDataset::open(folder / "d"); }),
                testing::AllOf(HasSubstr("d.bin: size"), HasSubstr("at least 18 bytes")));
  }
}

struct Alteration {
  const char* what;
  std::size_t at;
  std::uint64_t value;
  std::size_t bytes;
  const char* message;
};

TEST(IndexedDataset, EachAlteredFieldIsNamed) {
  const TestFolder folder;
  write_small(folder / "d");
  const std::string good = read_bytes(folder / "d.idx");
  const auto minus_one = std::numeric_limits<std::uint64_t>::max();
  const Alteration alterations[] = {
      {"magic", 0, 'X', 1, "byte 0 (magic)"},
      {"end of magic", 8, 1, 1, "byte 0 (magic)"},
      {"version", 9, 2, 8, "byte 9 (version): expected 1, got 2"},
      {"type 0", 17, 0, 1, "byte 17 (token type): expected 1 to 8, got 0"},
      {"type 9", 17, 9, 1, "byte 17 (token type): expected 1 to 8, got 9"},
      {"float type", 17, 7, 1, "byte 17 (token type): expected an integer type, got f32"},
      {"wider type", 17, 4, 1,
       "byte 58 (offset of sequence 1): expected 12, the bytes of the sequences before it, got 6"},
      {"sequences", 18, 3, 8, "size"},
      {"sequences that wrap", 18, 0x5555555555555559, 8, "size"},
      {"documents", 26, 6, 8, "size"},
      {"documents that wrap", 26, 0x2000000000000005, 8, "size"},
      {"all counts", 26, minus_one, 8, "size"},
      {"negative length", 34, 0xffffffff, 4, "byte 34 (length of sequence 0): expected 0 or more tokens, got -1"},
      {"longer", 34, 4, 4, "byte 58 (offset of sequence 1): expected 8"},
      {"last longer", 46, 6, 4, "d.bin: size: expected at least 20 bytes"},
      {"largest last", 46, 0x7fffffff, 4, "d.bin: size"},
      {"offset 0", 50, 2, 8, "byte 50 (offset of sequence 0): expected 0"},
      {"offset", 66, 8, 8, "byte 66 (offset of sequence 2): expected 6"},
      {"negative offset", 74, minus_one, 8, "byte 74 (offset of sequence 3): expected 8"},
      {"first document", 82, 1, 8, "byte 82 (document index 0): expected 0, got 1"},
      {"document back", 98, 0, 8, "byte 98 (document index 2): expected 1 to 4, got 0"},
      {"document beyond", 98, 5, 8, "byte 98 (document index 2): expected 1 to 4, got 5"},
      {"negative document", 90, minus_one, 8, "byte 90 (document index 1): expected 0 to 4, got -1"},
      {"last document", 114, 3, 8, "byte 114 (document index 4): expected 4"},
  };
  for (const Alteration& alteration : alterations) {
    SCOPED_TRACE(alteration.what);
    std::string index = good;
    std::memcpy(index.data() + alteration.at, &alteration.value, alteration.bytes);
    write_bytes(folder / "d.idx", index);
    const std::string message = error_of(ExitCode::kFormat, [&] { IndexedDataset::open(folder / "d"); });
    EXPECT_THAT(message, HasSubstr(alteration.message));
  }
}

TEST(IndexedDataset, OneAlteredByteNeverLeavesTheMapping) {
  const TestFolder folder;
  write_small(folder / "d");
  const std::string good = read_bytes(folder / "d.idx");
  int refused = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x02, 0x7f, 0x80, 0xff}) {
      std::string index = good;
      index[at] = static_cast<char>(value);
      write_bytes(folder / "d.idx", index);
      try {
        const IndexedDataset data = IndexedDataset::open(folder / "d");
        for (std::int64_t s = 0; s < data.num_sequences(); ++s) read_all(data, s);  // ASAN watches
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kFormat);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(IndexedDataset, MultimodalIndexIsCalledByItsName) {
  const TestFolder folder;
  write_small(folder / "d");
  write_bytes(folder / "d.idx", read_bytes(folder / "d.idx") + std::string(4, '\0'));
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { IndexedDataset::open(folder / "d"); }), HasSubstr("multimodal"));
}

TEST(IndexedDataset, TokensBeyondInt32AreRefused) {
  const TestFolder folder;
  write_small(folder / "d", TokenType::kI64);
  std::string tokens = read_bytes(folder / "d.bin");
  put(tokens, 8, std::int64_t{1} << 31);
  write_bytes(folder / "d.bin", tokens);
  const IndexedDataset data = IndexedDataset::open(folder / "d");
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { read_all(data, 0); }), HasSubstr("d.bin: sequence 0"));
  EXPECT_THAT(read_all(data, 2), ElementsAre(40));
}

TEST(IndexedDataset, UnreadableFiles) {
  const TestFolder folder;
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { IndexedDataset::open(folder / "none"); }), HasSubstr("none.idx"));
  write_small(folder / "d");
  std::filesystem::remove(folder / "d.bin");
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { IndexedDataset::open(folder / "d"); }), HasSubstr("d.bin"));
  std::filesystem::create_directory(folder / "d.bin");
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { IndexedDataset::open(folder / "d"); }), HasSubstr("a directory"));
}

TEST(IndexedDatasetWriter, NothingAppearsBeforeCommit) {
  const TestFolder folder;
  write_small(folder / "d");
  {
    IndexedDatasetWriter writer(folder / "d", TokenType::kU16);
    writer.add_document(Tokens(10000, 3));
    EXPECT_EQ(IndexedDataset::open(folder / "d").num_tokens(), 9);
  }
  EXPECT_EQ(IndexedDataset::open(folder / "d").num_tokens(), 9);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "")) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("d.bin", "d.idx"));
}

TEST(IndexedDatasetWriter, ReplacesAnOlderDataset) {
  const TestFolder folder;
  write_small(folder / "d");
  IndexedDatasetWriter writer(folder / "d", TokenType::kI32);
  Tokens tokens(700000);
  std::iota(tokens.begin(), tokens.end(), 0);
  writer.add_document(tokens);
  writer.commit();
  const IndexedDataset data = IndexedDataset::open(folder / "d");
  EXPECT_EQ(data.num_sequences(), 1);
  EXPECT_EQ(read_all(data, 0), tokens);
}

TEST(IndexedDatasetWriter, RefusesTokensBeyondTheType) {
  const TestFolder folder;
  IndexedDatasetWriter writer(folder / "d", TokenType::kU16);
  EXPECT_THROW(writer.add_document(Tokens{65536}), Error);
  EXPECT_THROW(writer.add_document(Tokens{-1}), Error);
}

TEST(IndexedDatasetWriter, FolderThatIsNotThere) {
  const TestFolder folder;
  EXPECT_THAT(error_of(ExitCode::kFileIo, [&] { IndexedDatasetWriter(folder / "no/d", TokenType::kU16); }),
              HasSubstr("no/d.bin"));
}

}  // namespace
}  // namespace megalith

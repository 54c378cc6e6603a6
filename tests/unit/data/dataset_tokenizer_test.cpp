// PREFIX.tokenizer: a dataset's record of its tokenizer, and the handling of data of another one.
#include "core/base/files/fault.h"
#include "core/data/dataset.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

class DatasetTokenizers : public testing::Test {
 protected:
  void write(const std::string& tokenizer, int documents = 5) {
    IndexedDatasetWriter writer(folder_ / "d", TokenType::kU16, tokenizer);
    for (int i = 0; i < documents; ++i) writer.add_document(golden_sequence(i, 41));
    writer.commit();
  }
  void build(const std::string& tokenizer) {
    build_datasets({.data_path = {folder_ / "d"},
                    .split = "100,0,0",
                    .seq_length = 8,
                    .vocab_size = 257,
                    .tokenizer = tokenizer,
                    .num_samples = {.train = 2}});
  }
  TestFolder folder_;
};

TEST_F(DatasetTokenizers, DataOfAnotherIsRefused) {
  write("byte-257");
  build("byte-257");
  build("");  // inspect does not ask
  const std::string message = error_of(ExitCode::kUsage, [&] { build("bpe-gpt2-700-0123"); });
  EXPECT_THAT(message, HasSubstr("--data-path " + (folder_ / "d") +
                                 ": tokenizer: expected byte-257, which the data was prepared with, got "
                                 "bpe-gpt2-700-0123; give the tokenizer's flags that prepare was given, or prepare "
                                 "the data with this one"));
}

TEST_F(DatasetTokenizers, DataOfAnotherProgramHasNoRecord) {
  write("byte-257");
  write("");  // over ours, whose record must not stay
  EXPECT_FALSE(std::filesystem::exists(folder_ / "d.tokenizer"));
  EXPECT_EQ(recorded_tokenizer(IndexedDataset::open(folder_ / "d")), std::nullopt);
  build("null-300");
}

TEST_F(DatasetTokenizers, ARecordOfOtherDataIsRefused) {
  write("byte-257", 7);
  const std::string older = read_bytes(folder_ / "d.tokenizer");
  write("byte-257", 5);
  write_bytes(folder_ / "d.tokenizer", older);
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { build("byte-257"); }),
              AllOf(HasSubstr("d.tokenizer: expected 5 documents and "), HasSubstr("d.idx has, got 7 and "),
                    EndsWith("prepare the data again, or remove the file if another program made the data")));
}

TEST_F(DatasetTokenizers, OnlyTheExactFormIsRead) {
  const auto parse = [](const std::string& text) { return parse_dataset_tokenizer(text, "d.tokenizer"); };
  const DatasetTokenizer record = parse("tokenizer bpe-x\ndocuments 0\ntokens 9223372036854775807\n");
  EXPECT_EQ(record.identity, "bpe-x");
  EXPECT_EQ(record.documents, 0);
  EXPECT_EQ(record.tokens, 9223372036854775807);
  for (const std::string text :
       {"", "tokenizer", "tokenizer \n", "tokenizer x", "tokenizer x\ndocuments 1\ntokens 1",
        "tokenizer x\ntokens 1\ndocuments 1\n", "tokenizer x y\ndocuments 1\ntokens 1\n",
        "tokenizer \x1b[1m\ndocuments 1\ntokens 1\n", "tokenizer x\ndocuments -1\ntokens 1\n",
        "tokenizer x\ndocuments 1.5\ntokens 1\n", "tokenizer x\ndocuments \ntokens 1\n",
        "tokenizer x\ndocuments 1\ntokens 9223372036854775808\n", "tokenizer x\ndocuments 1\ntokens 1\n\n",
        "tokenizer \xc3\xa4\ndocuments 1\ntokens 1\n"}) {
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { parse(text); }), HasSubstr("d.tokenizer: expected ")) << text;
  }
  write("byte-257");
  write_bytes(folder_ / "d.tokenizer", std::string(2000, 'x'));
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { build("byte-257"); }), HasSubstr("at most 1024 bytes"));
  std::filesystem::remove(folder_ / "d.tokenizer");
  std::filesystem::create_directory(folder_ / "d.tokenizer");
  EXPECT_THAT(error_of(ExitCode::kFormat, [&] { build("byte-257"); }), HasSubstr("expected a regular file"));
}

}  // namespace
}  // namespace megalith

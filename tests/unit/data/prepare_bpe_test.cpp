// The program prepare with byte-level BPE files: its output, the view of inspect, and rejected inputs.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>

#include "core/data/indexed_dataset.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using Words = std::vector<std::string>;

const std::string kFolder = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/";
const Words kGpt2 = {"--tokenizer-type",     "GPT2BPETokenizer", "--vocab-file",
                     kFolder + "vocab.json", "--merge-file",     kFolder + "merges.txt"};
const Words kTiktoken = {"--tokenizer-type",         "TikTokenizer",       "--tokenizer-model",
                         kFolder + "ranks.tiktoken", "--tiktoken-pattern", "cl100k"};

class PrepareBpe : public testing::Test {
 protected:
  // Exit code; its output is in `out` and `err` of the folder.
  int run(Words arguments, const Words& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::string command = MEGALITH_BIN_DIR "/prepare";
    for (const std::string& argument : arguments) command += " '" + argument + "'";
    const int status = std::system(fmt::format("{} >'{}' 2>'{}'", command, folder_ / "out", folder_ / "err").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int prepare(const Words& tokenizer) {
    return run({"--input", folder_ / "a.txt", "--output-prefix", folder_ / "d", "--append-eod"}, tokenizer);
  }
  std::string refused(ExitCode code, const Words& tokenizer) {
    EXPECT_EQ(prepare(tokenizer), static_cast<int>(code));
    const std::string message = read_bytes(folder_ / "err");
    EXPECT_EQ(std::ranges::count(message, '\n'), 1) << message;
    EXPECT_THAT(message, StartsWith("prepare: error: "));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "d.idx"));
    return message;
  }

  TestFolder folder_;
};

TEST_F(PrepareBpe, WritesTheTokenizersIdsAndReadsThem) {
  const std::string text = "It is a truth, caf\xc3\xa9 <|endoftext|>\n\xff\xc3 12345";
  write_bytes(folder_ / "a.txt", text);
  const Tokenizer tokenizer = make_tokenizer(
      {.type = "GPT2BPETokenizer", .vocab_file = kFolder + "vocab.json", .merge_file = kFolder + "merges.txt"});
  std::vector<std::int32_t> expected;
  tokenizer.encode(text, expected);
  expected.push_back(tokenizer.eod());
  ASSERT_EQ(prepare(kGpt2), 0) << read_bytes(folder_ / "err");
  EXPECT_THAT(read_bytes(folder_ / "out"), HasSubstr("(" + tokenizer.identity() + ")"));
  const IndexedDataset data = IndexedDataset::open(folder_ / "d");
  EXPECT_EQ(data.token_type(), TokenType::kU16);
  ASSERT_EQ(data.num_tokens(), static_cast<std::int64_t>(expected.size()));
  std::vector<std::int32_t> ids(expected.size());
  data.read(0, 0, ids);
  EXPECT_EQ(ids, expected);

  ASSERT_EQ(run({"inspect", folder_ / "d"}, kGpt2), 0) << read_bytes(folder_ / "err");
  EXPECT_THAT(read_bytes(folder_ / "out"),
              HasSubstr(fmt::format("document 0: {} tokens, the last is EOD: \"It is a truth, caf\xc3\xa9 "
                                    "<|endoftext|>\\n\xff\xc3 12345\"\n",
                                    expected.size())));
}

TEST_F(PrepareBpe, LargeIdsTakeFourBytes) {
  write_bytes(folder_ / "a.txt", "text");
  Words flags = kTiktoken;
  flags.insert(flags.end(), {"--tiktoken-special-tokens", "<|endoftext|>=70000"});
  ASSERT_EQ(prepare(flags), 0) << read_bytes(folder_ / "err");
  const IndexedDataset data = IndexedDataset::open(folder_ / "d");
  EXPECT_EQ(data.token_type(), TokenType::kI32);
  std::int32_t last = 0;
  data.read(0, data.sequence_length(0) - 1, std::span(&last, 1));
  EXPECT_EQ(last, 70000);
}

TEST_F(PrepareBpe, BadFilesAndFlags) {
  write_bytes(folder_ / "a.txt", "text");
  const auto json = [&](const std::string& text) {
    write_bytes(folder_ / "t.json", text);
    return refused(ExitCode::kFormat,
                   {"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", folder_ / "t.json"});
  };
  EXPECT_THAT(json(""), HasSubstr("t.json"));
  EXPECT_THAT(json("{\"model\": {\"type\": \"BPE\"}"), HasSubstr("t.json: byte 26: expected JSON"));
  EXPECT_THAT(json("{}"), HasSubstr("t.json: pre_tokenizer: expected ByteLevel"));
  EXPECT_THAT(json(std::string(1 << 20, '[')), HasSubstr("JSON of at most 32 levels, got 1048576"));
  EXPECT_THAT(refused(ExitCode::kFileIo, {"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "/none"}),
              HasSubstr("/none"));
  Words flags = kGpt2;
  flags.insert(flags.end(), {"--eod-token", "<|end|>"});
  EXPECT_THAT(refused(ExitCode::kUsage, flags), HasSubstr("--eod-token: expected a token of "));
  flags = kTiktoken;
  flags.back() = "(a+)+";
  EXPECT_THAT(refused(ExitCode::kUsage, flags), HasSubstr("--tiktoken-pattern: expected gpt2, cl100k,"));
  EXPECT_THAT(refused(ExitCode::kUsage, {"--tokenizer-type", "GPT2BPETokenizer"}), HasSubstr("--vocab-file"));
}

}  // namespace
}  // namespace megalith

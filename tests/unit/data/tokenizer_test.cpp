#include "core/tokenizer/tokenizer.h"

#include "tests/support/matchers.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

TEST(ByteTokenizer, EveryByteComesBack) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const Tokenizer tokenizer;
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids);
  ASSERT_EQ(ids.size(), 256u);
  for (std::int32_t i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST(ByteTokenizer, EodHasNoText) {
  const Tokenizer tokenizer = make_tokenizer({.type = "byte"});
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.eod(), 256);
  EXPECT_EQ(tokenizer.identity(), "byte-257");
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{72, 256, 105, 300, -1}), "Hi");
}

TEST(ByteTokenizer, EncodeAppends) {
  std::vector<std::int32_t> ids = {1};
  Tokenizer().encode("A", ids);
  EXPECT_THAT(ids, ElementsAre(1, 65));
}

TEST(NullTokenizer, TextIsIds) {
  const Tokenizer tokenizer = make_tokenizer({.type = "null", .vocab_size = 1000});
  EXPECT_EQ(tokenizer.vocab_size(), 1001);
  EXPECT_EQ(tokenizer.eod(), 1000);
  EXPECT_EQ(tokenizer.identity(), "null-1001");
  EXPECT_EQ(make_tokenizer({.type = "NullTokenizer", .vocab_size = 1000}).identity(),
            tokenizer.identity());  // Megatron's name
  std::vector<std::int32_t> ids;
  tokenizer.encode(" 3 999\n0\t", ids);
  EXPECT_THAT(ids, ElementsAre(3, 999, 0));
  EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{3, 1000, 999}), "3 999");
  for (const std::string text : {"1000", "-1", "x", "3x", "99999999999"}) {
    EXPECT_THAT(error_of(ExitCode::kFormat, [&] { tokenizer.encode(text, ids); }), HasSubstr("'" + text + "'"));
  }
}

TEST(MakeTokenizer, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(error_of(ExitCode::kUsage, [] { make_tokenizer({.type = "word"}); }),
              HasSubstr("--tokenizer-type: expected one of byte, null, GPT2BPETokenizer, HuggingFaceTokenizer, "
                        "TikTokenizer, Llama2Tokenizer, GPTSentencePieceTokenizer, got 'word'"));
  EXPECT_THAT(error_of(ExitCode::kUsage, [] { make_tokenizer({.type = "null"}); }), HasSubstr("--vocab-size"));
  EXPECT_THAT(error_of(ExitCode::kUsage, [] { make_tokenizer({.type = "null", .vocab_size = 2147483647}); }),
              HasSubstr("--vocab-size"));
}

}  // namespace
}  // namespace megalith

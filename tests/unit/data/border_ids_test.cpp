// Ids ahead of each byte of a text: those of the text up to there, at every border of words and added tokens.
#include "core/tokenizer/tokenizer.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using BorderTokens = std::vector<std::int32_t>;

BorderTokens encode_alone(const Tokenizer& tokenizer, std::string_view text) {
  BorderTokens ids;
  tokenizer.encode(text, ids);
  return ids;
}

// Borders of each byte of the text. Found ones must divide the ids into those of both parts' texts.
std::string found_borders(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::size_t> bytes;
  for (std::size_t byte = 0; byte <= text.size(); ++byte) bytes.push_back(byte);
  BorderIds borders(bytes);
  BorderTokens ids;
  tokenizer.encode(text, ids, borders);
  EXPECT_EQ(ids, encode_alone(tokenizer, text)) << text;
  std::string found;
  for (const std::size_t byte : bytes) {
    found += borders.ids(byte) ? '|' : '.';
    if (!borders.ids(byte)) continue;
    const auto cut = static_cast<std::ptrdiff_t>(*borders.ids(byte));
    EXPECT_EQ(BorderTokens(ids.begin(), ids.begin() + cut), encode_alone(tokenizer, text.substr(0, byte))) << text;
    EXPECT_EQ(BorderTokens(ids.begin() + cut, ids.end()), encode_alone(tokenizer, text.substr(byte))) << text;
  }
  return found;
}

Tokenizer golden_tokenizer(const std::string& name) {
  return make_tokenizer({.type = "HuggingFaceTokenizer",
                         .tokenizer_model = MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/" + name + ".json"});
}

TEST(BorderIdsTest, WordsAndAddedTokens) {
  const Tokenizer qwen = golden_tokenizer("qwen2");
  EXPECT_EQ(found_borders(qwen, "It is 42"), "|.|..||||");
  EXPECT_EQ(found_borders(qwen, "a<|im_start|><|endoftext|>b"), "||...........|............||");
  EXPECT_EQ(found_borders(qwen, ""), "|");
  EXPECT_EQ(found_borders(golden_tokenizer("gpt2"), "one two"), "|..|...|");
  EXPECT_EQ(found_borders(golden_tokenizer("llama3"), "x\n\ny"), "||.||");
}

TEST(BorderIdsTest, NormalizedTextHasNoBordersInside) {
  const Tokenizer qwen = golden_tokenizer("qwen2");
  EXPECT_EQ(found_borders(qwen, "e\xcc\x81 b<|endoftext|>c"), "|....|............||");
  EXPECT_EQ(found_borders(qwen, "\xc3\xa9 b"), "|.|.|");
}

TEST(BorderIdsTest, BytesAreBordersAndNullFindsNone) {
  EXPECT_EQ(found_borders(Tokenizer(), "abc"), "||||");
  const std::vector<std::size_t> bytes = {0, 2};
  BorderIds borders(bytes);
  BorderTokens ids;
  Tokenizer::null(100).encode("1 2", ids, borders);
  EXPECT_EQ(ids, (BorderTokens{1, 2}));
  EXPECT_EQ(borders.ids(0), std::nullopt);
}

TEST(BorderIdsTest, RepeatedBytes) {
  const std::vector<std::size_t> bytes = {1, 1, 3, 3, 3};
  BorderIds borders(bytes);
  BorderTokens ids;
  Tokenizer().encode("abc", ids, borders);
  EXPECT_EQ(borders.ids(0), 1u);
  EXPECT_EQ(borders.ids(1), 1u);
  EXPECT_EQ(borders.ids(4), 3u);
}

}  // namespace
}  // namespace megalith

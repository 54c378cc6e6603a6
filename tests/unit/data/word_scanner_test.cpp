// Against the words that Python's regex cuts by the same expressions, of tests/golden/tokenizer.
#include "core/tokenizer/word_scanner.h"

#include <nlohmann/json.hpp>

#include "core/base/text/utf8.h"
#include "core/tokenizer/nfc.h"
#include "tests/unit/data/data_files.h"

namespace megalith {
namespace {

using Words = std::vector<std::string>;

Words words_of(const WordScanner& scanner, std::string_view text) {
  Words words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = scanner.next(text, at);
    if (end <= at || end > text.size()) {
      ADD_FAILURE() << "a word from " << at << " to " << end << " of " << text.size();
      break;
    }
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

TEST(WordScanner, CutsAsTheExpressionsDo) {
  const auto golden = nlohmann::json::parse(read_bytes(MEGALITH_SOURCE_DIR "/tests/golden/tokenizer/golden.json"));
  int compared = 0;
  for (const auto& [name, expected] : golden.at("words").items()) {
    const std::optional<WordPattern> pattern = word_pattern_of_name(name);
    ASSERT_TRUE(pattern) << name;
    EXPECT_EQ(to_string(*pattern), name);
    const WordScanner scanner(*pattern);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(words_of(scanner, golden.at("texts")[i].get<std::string>()), expected[i].get<Words>()) << name;
      ++compared;
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(WordScanner, TakesAnyBytes) {
  const std::string bytes =
      "a\xff\xfe"
      "b \xc3 \xe2\x82'\xf0\x9f\x98s\x80";
  for (const char* name : {"gpt2", "cl100k", "llama3", "qwen2", "o200k", "v1", "v2"}) {
    const WordScanner scanner(*word_pattern_of_name(name));
    std::string back;
    for (const std::string& word : words_of(scanner, bytes)) back += word;
    EXPECT_EQ(back, bytes);
  }
  EXPECT_EQ(words_of(WordScanner(WordPattern::kGpt2),
                     "a\xff\xfe"
                     "b"),
            (Words{"a", "\xff\xfe", "b"}));
}

TEST(WordPattern, KnowsNamesAndSpellings) {
  EXPECT_EQ(word_pattern_of_name("llama"), std::nullopt);
  EXPECT_EQ(word_pattern_of_regex(R"(\s+)"), std::nullopt);
  EXPECT_EQ(word_pattern_of_regex(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
            WordPattern::kGpt2);
}

TEST(CharClasses, OfUnicode16) {
  const std::vector<CharClass> classes = char_classes();
  std::array<int, 9> counts{};
  for (std::uint32_t value = 0; value < kCodePoints; ++value) ++counts[static_cast<std::size_t>(classes[value])];
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kSpace)], 23);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kNewline)], 2);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kNumber)], 1911);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kUpper)], 1858 + 31);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kLower)], 2258);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kLetter)], 404 + 136477);
  EXPECT_EQ(counts[static_cast<std::size_t>(CharClass::kMark)], 2501);
  EXPECT_EQ(classes[kCodePoints + 255], CharClass::kOther);
}

std::string nfc(std::string_view text) {
  static const NfcNormalizer normalizer;
  std::string out = "<";
  normalizer.append(out, text);
  return out.substr(1);
}

TEST(Nfc, ComposesInOrder) {
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("\u00e9"), "\u00e9");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");  // marks are sorted
  EXPECT_EQ(nfc("a\u0323\u0302b"),
            "\u1ead"
            "b");                                  // twice composed
  EXPECT_EQ(nfc("\u1e9b\u0323"), "\u1e9b\u0323");  // Annex 15, table 7
  EXPECT_EQ(nfc("\u2126\u212b"), "\u03a9\u00c5");  // singletons
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");        // excluded from composition
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "\ud55c");  // Hangul
  EXPECT_EQ(nfc("\ud558\u11ab"), "\ud55c");
  EXPECT_EQ(nfc("\u0301"), "\u0301");  // nothing to compose with
  EXPECT_EQ(nfc("a\u0301\u0301"), "\u00e1\u0301");
  EXPECT_EQ(nfc("x\xff\u0301"
                "e\u0301\xc3"),
            "x\xff\u0301\u00e9\xc3");  // bytes that are not UTF-8
}

}  // namespace
}  // namespace megalith

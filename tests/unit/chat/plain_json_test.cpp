// The fast reader of JSON against the general one.
#include "core/chat/jinja_plain_json.h"

#include <random>

#include "tests/unit/chat/chat_files.h"

namespace megalith {
namespace {

// Returns the text of the general reader's value, none if it is an error.
std::optional<std::string> any_json(const std::string& text) {
  try {
    return jinja::to_json(jinja::parse_any_json(text, "test"), {});
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns whether the fast reader has a value.
bool is_plain(const std::string& text) {
  const std::optional<jinja::Value> value = jinja::parse_plain_json(text);
  if (value) EXPECT_EQ(jinja::to_json(*value, {}), any_json(text)) << text;
  return value.has_value();
}

TEST(PlainJson, ReadsWhatConversationsHave) {
  for (const char* text :
       {R"({"messages": [{"role": "user", "content": "a\n\"b\" \u00e9\ud83d\ude00 é😀 \/\\\b\f\r\t"}]})", R"( [ ] )",
        R"({})", R"({"a":{"b":[1,-2,0,123456789012345678,true,false,null]}})", "\"\"", "\t\r\n7 ",
        R"(["\u0000\u007f\u0080\u07ff\u0800\uffff"])", "\"\x7f\""}) {
    EXPECT_TRUE(is_plain(text)) << text;
  }
}

TEST(PlainJson, LeavesTheRestToTheGeneralReader) {
  for (const std::string text : {R"([1.5])",
                                 R"([1e3])",
                                 R"([-0])",
                                 R"([01])",
                                 R"([1234567890123456789])",
                                 R"({"a":1,"a":2})",
                                 R"(["\ud800"])",
                                 R"(["\udc00\ud800"])",
                                 R"(["\ud800\u0041"])",
                                 R"(["\u12g4"])",
                                 R"(["\x"])",
                                 "[\"\n\"]",
                                 "[\"\xff\"]",
                                 "[\"\xc0\x80\"]",
                                 "[\"\xed\xa0\x80\"]",
                                 "\xef\xbb\xbf[]",
                                 "[1,]",
                                 "[1 2]",
                                 "{\"a\"}",
                                 "{1:2}",
                                 "{\"a\":1,}",
                                 "[",
                                 "\"a",
                                 "",
                                 "tru",
                                 "nul",
                                 "-",
                                 "[]]",
                                 "[\"\\",
                                 "[+1]",
                                 "[.5]",
                                 "NaN"}) {
    EXPECT_FALSE(is_plain(text)) << text;
  }
  EXPECT_FALSE(is_plain(std::string("[]\0", 3)));
  EXPECT_FALSE(is_plain(std::string("[\"\0\"]", 5)));
  EXPECT_TRUE(is_plain(std::string(32, '[') + std::string(32, ']')));
  EXPECT_FALSE(is_plain(std::string(33, '[') + std::string(33, ']')));
}

TEST(PlainJson, EqualsTheGeneralReaderOnChangedTexts) {
  const std::string whole =
      R"({"messages": [{"role": "user", "content": "a\n\"b\" \u00e9\ud83d\ude00 é😀\\"}, {"n": [-1, 20, null, true]}]})";
  constexpr std::string_view kBytes = "\"\\{}[]:,u0dD8cn1-. \xc3\xa9\xed\x80";
  std::mt19937 random(7);
  int plain = 0;
  for (int i = 0; i < 8000; ++i) {
    std::string text = whole;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      const char byte = kBytes[random() % kBytes.size()];
      switch (random() % 3) {
        case 0: text[at] = byte; break;
        case 1: text.insert(at, 1, byte); break;
        default: text.erase(at, 1); break;
      }
    }
    plain += is_plain(text) ? 1 : 0;
  }
  EXPECT_GT(plain, 200);
}

}  // namespace
}  // namespace megalith

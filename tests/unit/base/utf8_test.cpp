#include "core/base/text/utf8.h"

#include <gtest/gtest.h>

namespace megalith {
namespace {

TEST(Utf8, EveryCodePointComesBack) {
  for (std::uint32_t value = 0; value < kCodePoints; ++value) {
    if (value >= 0xd800 && value < 0xe000) continue;
    std::string text;
    append_utf8(text, value);
    const CodePoint code = decode_utf8(text + "x", 0);
    ASSERT_EQ(code.value, value);
    ASSERT_EQ(code.bytes, text.size());
  }
}

TEST(Utf8, BytesThatAreNoneComeBackOneByOne) {
  for (const std::string text :
       {"\x80", "\xff", "\xc3", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xf0\x9f\x98", "\xc3(", "\xe2\x82(", "\xf0\x9f\x98("}) {
    const CodePoint code = decode_utf8(text, 0);
    EXPECT_EQ(code.value, kCodePoints + static_cast<unsigned char>(text[0])) << testing::PrintToString(text);
    EXPECT_EQ(code.bytes, 1u);
    std::string back;
    append_utf8(back, code.value);
    EXPECT_EQ(back, text.substr(0, 1));
  }
}

TEST(Utf8Stream, HoldsBackWhatIsNotComplete) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push(""), "");
  EXPECT_EQ(stream.push("a\xe2"), "a");
  EXPECT_EQ(stream.push("\x82"), "");
  EXPECT_EQ(stream.push("\xac!"), "\xe2\x82\xac!");
  EXPECT_EQ(stream.push("\xf0\x9f\x98"), "");
  EXPECT_EQ(stream.push("\x80\xc3"), "\xf0\x9f\x98\x80");
  EXPECT_EQ(stream.flush(), "\xc3");
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("\x80\x80\x80\x80"), "\x80\x80\x80\x80");  // belongs to nothing
  EXPECT_EQ(stream.push("\xff"), "\xff");
}

}  // namespace
}  // namespace megalith

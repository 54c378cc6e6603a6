#include "core/base/text/text.h"

#include <gtest/gtest.h>

#include <array>

#include "core/base/log.h"

namespace megalith {
namespace {

TEST(OneLine, KeepsWhatIsLegible) {
  for (const std::string text :
       {"", "plain 'text' \\ \"\\n\"", "Größe 数据 🙂 é", "\xc2\xa0", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(in_one_line(text), text);
  }
}

TEST(OneLine, EscapesWhatSteersATerminal) {
  EXPECT_EQ(in_one_line("a\nb\r\tc\x7f"), "a\\nb\\x0d\\x09c\\x7f");
  EXPECT_EQ(in_one_line("\x1b]0;title\x07\x1b[2J"), "\\x1b]0;title\\x07\\x1b[2J");
  EXPECT_EQ(in_one_line(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(in_one_line("\xc2\x9b"
                        "31m"),
            "\\xc2\\x9b31m");  // CSI, as one character
  EXPECT_EQ(in_one_line("\x9b"
                        "31m \xff \xe2\x82"),
            "\\x9b31m \\xff \\xe2\\x82");  // not UTF-8
  EXPECT_EQ(in_one_line("\xe2\x80\xa8 \xe2\x80\xae \xe2\x81\xa6"), "\\xe2\\x80\\xa8 \\xe2\\x80\\xae \\xe2\\x81\\xa6");
}

TEST(OneLine, FillsWhatThereIs) {
  std::array<char, 7> out{};
  EXPECT_EQ(std::string_view(out.data(), put_in_one_line("abc\n\xc3\xa9", out)), "abc\\n\xc3\xa9");
  EXPECT_EQ(std::string_view(out.data(), put_in_one_line("abcdef\xc3\xa9g", out)), "abcdef");  // no half character
  EXPECT_EQ(put_in_one_line("a", {}), 0u);
}

std::string logged(void (*log)(std::string_view), std::string_view text) {
  testing::internal::CaptureStderr();
  log(text);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, IsOneLineWhateverItShows) {
  const std::string hostile = "other flags: seed=1\n[megalith] loaded\x1b[8m, größer";
  const std::string shown = "other flags: seed=1\\n[megalith] loaded\\x1b[8m, größer\n";
  EXPECT_EQ(logged(log_info, hostile), "[megalith] " + shown);
  EXPECT_EQ(logged(log_warning, hostile), "[megalith] warning: " + shown);
  EXPECT_EQ(logged(log_last_words, hostile), shown);
}

TEST(Log, IsCutWhereItWouldFlood) {
  const std::string flood(1'000'000, 'x');
  const std::string line = logged(log_info, flood);
  EXPECT_EQ(line, "[megalith] " + flood.substr(0, 16'384) + "... and 983616 bytes more\n");
  EXPECT_EQ(logged(log_last_words, flood), flood.substr(0, 8191) + "\n");
}

}  // namespace
}  // namespace megalith

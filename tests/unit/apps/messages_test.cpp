// Every golden message as it is written in tests/golden_messages, and what all of them must have.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "tests/unit/apps/flags_support.h"
#include "tests/unit/apps/golden_messages.h"

namespace megalith::test {
namespace {

std::vector<std::string> golden_files() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(MEGALITH_SOURCE_DIR "/tests/golden_messages")) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path().filename().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<GoldenMessage> all_messages() {
  std::vector<GoldenMessage> all;
  for (const std::string& file : golden_files()) {
    for (GoldenMessage& message : golden_messages(file)) all.push_back(std::move(message));
  }
  return all;
}

class Messages : public InFolder, public testing::WithParamInterface<std::string> {};

// With MEGALITH_MESSAGES=FOLDER set the messages as they are now are written there, to compare and to take over.
TEST_P(Messages, AreAsWritten) {
  const char* folder = std::getenv("MEGALITH_MESSAGES");
  std::string written;
  int number = 0;
  for (const GoldenMessage& message : golden_messages(GetParam())) {
    const std::string own = std::to_string(number++);
    std::filesystem::create_directory(own);
    std::filesystem::current_path(own);
    const std::string outcome = outcome_of(message);
    std::filesystem::current_path("..");
    EXPECT_EQ(outcome, message.expected) << message.file << ':' << message.line << ": " << message.title;
    written += message.title + "\n";
    for (const std::string& step : message.steps) written += "  " + step + "\n";
    written += "  " + outcome + "\n\n";
  }
  if (folder != nullptr) std::ofstream(std::string(folder) + "/" + GetParam()) << written;
}

INSTANTIATE_TEST_SUITE_P(Golden, Messages, testing::ValuesIn(golden_files()), [](const auto& file) {
  std::string name = file.param.substr(0, file.param.find('.'));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(GoldenMessages, AreManyAndDifferent) {
  std::set<std::string> messages, titles;
  for (const GoldenMessage& message : all_messages()) {
    messages.insert(message.expected);
    EXPECT_TRUE(titles.insert(message.file + message.title).second) << message.title << ": twice";
  }
  EXPECT_GE(messages.size(), 150u);
}

// Cause and value ("expected ..., got ..." or words of its own), place, remedy; a documented exit code; one line of
// plain text without a path of the machine.
TEST(GoldenMessages, HaveCauseValuePlaceAndRemedy) {
  static const std::regex kOutcome("exit (2|3|4|5|6|7|8|9): (.+)");
  static const std::regex kPlace(R"(^(--?[a-z]|[^ ]+\.[a-z]+[: ]|[^ ]+:\d+|cannot |"|'|no valid checkpoint in |)"
                                 R"(METRICS|(apps|core|parallel)/|[a-z]).*)");
  for (const GoldenMessage& message : all_messages()) {
    const std::string where = fmt::format("{}:{}: {}", message.file, message.line, message.title);
    std::smatch parts;
    ASSERT_TRUE(std::regex_match(message.expected, parts, kOutcome)) << where << ": " << message.expected;
    const std::string text = parts[2];
    EXPECT_TRUE(std::regex_search(text, kPlace)) << where << ": no place: " << text;
    const bool is_call = message.steps.back().starts_with("call ");  // a programmer's error: what is expected will do
    EXPECT_TRUE(text.find("; ") != std::string::npos ||
                (is_call && (text.find("expected ") != std::string::npos || text.find("got ") != std::string::npos)))
        << where << ": no remedy: " << text;
    EXPECT_LE(text.size(), 600u) << where;
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c != 0x7f; })) << where;
    EXPECT_EQ(text.find("/tmp/"), std::string::npos) << where;
    EXPECT_FALSE(text.ends_with('.')) << where;
  }
}

}  // namespace
}  // namespace megalith::test

// --help of every program: groups, and for each flag what it is, its unit, default and range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <sstream>

#include "apps/flags/flags_table.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// The text of one flag in --help: from its line to the next that starts with two blanks and no more.
std::string text_of(const std::string& help, const std::string& flag) {
  const std::size_t at = help.find("\n  " + flag + " ");
  if (at == std::string::npos) return "";
  std::istringstream lines(help.substr(at + 1));
  std::string text;
  for (std::string line; std::getline(lines, line) && (text.empty() || line.starts_with("   "));) {
    std::istringstream words(line);
    for (std::string word; words >> word;) text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

std::vector<std::string> groups_of(const std::string& help) {
  std::vector<std::string> groups;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != ' ' && line.back() == ':') groups.push_back(line.substr(0, line.size() - 1));
  }
  return groups;
}

TEST(Help, EveryFlagSaysUnitDefaultAndRange) {
  Options options;
  Requests requests;
  for (const App app : {App::kTrain, App::kGenerate, App::kPlan, App::kReport, App::kConvert}) {
    const std::string help = help_text(app);
    for (const Flag& flag : make_table(options, requests)) {
      if (!takes(flag, app)) continue;
      const std::string name = flag.traits.positional ? std::string(flag.unit) : "--" + std::string(flag.name);
      SCOPED_TRACE(std::string(name_of(app)) + " " + name);
      const std::string text = text_of(help, name);
      ASSERT_FALSE(text.empty());
      EXPECT_FALSE(flag.help.empty());
      const bool is_toggle = flag.binding.kind == ValueKind::kToggle;
      EXPECT_EQ(flag.unit.empty(), is_toggle) << "the unit of its value";
      EXPECT_THAT(text, StartsWith(is_toggle || flag.traits.positional ? name + " "
                                                                       : name + " " + std::string(flag.unit) + " "));
      if (flag.group == FlagGroup::kProgram) continue;  // asked of the program, no setting
      const std::size_t bracket = text.rfind(" [");
      ASSERT_NE(bracket, std::string::npos) << text;
      EXPECT_EQ(text.back(), ']');
      const std::string facts = text.substr(bracket + 2);
      EXPECT_TRUE(facts.starts_with("default ") || facts.find("required") != std::string::npos) << facts;
      EXPECT_EQ(facts.find("default ]"), std::string::npos) << "an empty default: " << facts;
      EXPECT_EQ(facts.find("default ;"), std::string::npos) << "an empty default: " << facts;
      const bool has_range = flag.binding.kind == ValueKind::kInteger || flag.binding.kind == ValueKind::kReal ||
                             flag.binding.kind == ValueKind::kChoice;
      EXPECT_TRUE(!has_range || facts.find("; ") != std::string::npos) << "no range: " << facts;
    }
  }
}

TEST(Help, StandsInGroups) {
  EXPECT_THAT(groups_of(help_text(App::kTrain)),
              testing::ElementsAre("Model", "Moe", "Training", "Optimizer", "Data", "Evaluation", "Checkpoint",
                                   "Parallel", "Memory", "Logging", "Forecast", "Testing", "Program", "Exit codes"));
  EXPECT_THAT(groups_of(help_text(App::kGenerate)),
              testing::ElementsAre("Training", "Data", "Checkpoint", "Memory", "Generate", "Program", "Exit codes"));
  EXPECT_THAT(groups_of(help_text(App::kReport)), testing::ElementsAre("Report", "Program", "Exit codes"));
}

TEST(Help, FitsATerminal) {
  for (const App app : {App::kTrain, App::kGenerate, App::kPlan, App::kReport, App::kConvert}) {
    std::istringstream lines(help_text(app));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;
  }
}

std::string help_of_prepare(const std::string& arguments) {
  const std::string command = MEGALITH_BIN_DIR "/prepare " + arguments + " --help";
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0);
  return text;
}

// Those of the command line that stand in the help; the program has a table of its own.
TEST(Help, EveryFlagOfPrepareSaysUnitDefaultAndRange) {
  for (const auto& [arguments, number] : {std::pair{"", 14}, {"inspect", 16}}) {
    const std::string help = help_of_prepare(arguments);
    std::istringstream lines(help);
    int flags = 0;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  -")) continue;
      const std::string name = line.substr(2, line.find_first_of(" ,", 2) - 2);
      if (name == "-h" || name == "--version") continue;
      SCOPED_TRACE(std::string("prepare ") + arguments + " " + name);
      ++flags;
      const std::string text = text_of(help, name);
      const std::string facts = text.substr(text.rfind(" ["));
      EXPECT_TRUE(facts.starts_with(" [default ") || facts.starts_with(" [required")) << text;
      EXPECT_EQ(text.back(), ']');
      if (name != "--append-eod") {
        const char unit = text[name.size() + 1];
        EXPECT_TRUE(unit >= 'A' && unit <= 'Z') << "no unit: " << text;
      }
    }
    EXPECT_GE(flags, number);
    EXPECT_THAT(help, HasSubstr("\nTokenizer:\n"));
    EXPECT_THAT(help, HasSubstr("\nExit codes:\n"));
  }
}

}  // namespace
}  // namespace megalith

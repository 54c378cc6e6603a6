// --help of every program: groups, and for each flag what it is, its unit, default and range.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "apps/flags/flags_table.h"
#include "tests/support/matchers.h"
#include "tests/unit/apps/flags_support.h"

namespace megalith {
namespace {

// The text of one flag in --help: from its line to the next that starts with two blanks and no more.
std::string text_of(const std::string& help, const std::string& flag) {
  const std::size_t at = std::min(help.find("\n  " + flag + " "), help.find("\n  " + flag + "\n"));
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
  for (const App app : kApps) {
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
  EXPECT_THAT(
      groups_of(help_text(App::kGenerate)),
      testing::ElementsAre("Training", "Data", "Checkpoint", "Memory", "Generate", "Prepare", "Program", "Exit codes"));
  EXPECT_THAT(groups_of(help_text(App::kEvaluate)),
              testing::ElementsAre("Training", "Data", "Checkpoint", "Generate", "Program", "Exit codes"));
  EXPECT_THAT(groups_of(help_text(App::kReport)), testing::ElementsAre("Report", "Program", "Exit codes"));
  EXPECT_THAT(groups_of(help_text(App::kPrepare)),
              testing::ElementsAre("Model", "Data", "Prepare", "Program", "Exit codes"));
  EXPECT_THAT(groups_of(help_text(App::kInspect)),
              testing::ElementsAre("Model", "Training", "Data", "Inspect", "Program", "Exit codes"));
}

TEST(Help, FitsATerminal) {
  for (const App app : kApps) {
    std::istringstream lines(help_text(app));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110u) << line;
  }
}

}  // namespace
}  // namespace megalith

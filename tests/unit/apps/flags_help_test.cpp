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
    for (const std::string& help : {help_text(app), short_help(app)}) {
      std::istringstream lines(help);
      for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
    }
  }
}

TEST(Help, HasThirtyFlagsAndThreeExamples) {
  const std::string help = parse_flags(App::kTrain, {"--help"}).print;
  EXPECT_EQ(help, short_help(App::kTrain));
  const auto count = [&](const std::string& start) {
    std::istringstream lines(help);
    int found = 0;
    for (std::string line; std::getline(lines, line);) found += line.starts_with(start) ? 1 : 0;
    return found;
  };
  EXPECT_EQ(count("  --"), 30);
  EXPECT_EQ(count("  mpirun "), 3);
  EXPECT_THAT(help, HasSubstr("train --help TOPIC those of a group or word.\nGroups:\n        model, moe, "));
  EXPECT_EQ(short_help(App::kReport), help_text(App::kReport));
  EXPECT_EQ(parse_flags(App::kPlan, {"--world-size", "8", "--help-all"}).print, help_text(App::kPlan));
}

TEST(Help, OfATopicHasAGroupOrTheFlagsOfAWord) {
  EXPECT_THAT(groups_of(parse_flags(App::kTrain, {"--help", "Parallel"}).print), testing::ElementsAre("Parallel"));
  const std::string words = topic_help(App::kTrain, "warmup_iters");
  EXPECT_THAT(words, StartsWith("Optimizer:\n  --lr-warmup-iters STEPS "));
  EXPECT_EQ(words.find("--lr-decay"), std::string::npos);
  EXPECT_THAT([] { topic_help(App::kReport, "parallel"); },
              testing::Throws<Error>(testing::Property(&Error::what, HasSubstr("--help: expected a group (report, "))));
}

// Each flag of --help and of its examples exists.
TEST(Help, ExamplesParse) {
  for (const App app : {App::kTrain, App::kPlan}) {
    std::istringstream lines(short_help(app));
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  mpirun ") && !line.starts_with("  plan ")) continue;
      std::istringstream words(line);
      for (std::string word; words >> word;) {
        if (!word.starts_with("--")) continue;
        EXPECT_NE(text_of(help_text(app), word), "") << word;
      }
    }
  }
}

}  // namespace
}  // namespace megalith

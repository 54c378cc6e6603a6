// docs/flags.md is made from the table of flags; frozen_flags.txt is written by hand, so that a new flag is a decision.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "apps/flags/flags_table.h"

namespace megalith {
namespace {

constexpr const char* kPage = MEGALITH_SOURCE_DIR "/docs/flags.md";
constexpr const char* kFrozen = MEGALITH_SOURCE_DIR "/tests/unit/apps/frozen_flags.txt";
constexpr const char* kUpdate = "MEGALITH_UPDATE_DOCS=1 unit_apps --gtest_filter='FlagsPage.*'";

std::string text_of_file(const char* path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string default_of(const Flag& flag) {
  if (flag.binding.kind == ValueKind::kToggle) return "off";
  if (!flag.traits.shown.empty()) return std::string(flag.traits.shown);
  std::string value = flag.binding.get();
  std::erase(value, '"');
  return value;
}

std::string others(const std::vector<OtherFlag>& others, std::string_view word) {
  std::string text;
  for (const OtherFlag& other : others) {
    text += fmt::format("{} {}--{}{}{}", text.empty() ? "" : ",", text.empty() ? fmt::format("{} ", word) : "",
                        other.flag, other.value.empty() ? "" : " ", other.value);
    for (const App app : kApps)
      if (other.apps == static_cast<unsigned>(app)) text += fmt::format(" in {}", name_of(app));
  }
  return text.empty() ? "" : text + ".";
}

std::string programs_of(const Flag& flag) {
  std::string programs;
  for (const App app : kApps)
    if (takes(flag, app)) programs += fmt::format("{}{}", programs.empty() ? "" : ", ", name_of(app));
  return programs;
}

std::string row(const Flag& flag) {
  const std::string name = flag.traits.positional
                               ? std::string(flag.unit)
                               : fmt::format("--{}{}{}", flag.name, flag.unit.empty() ? "" : " ", flag.unit);
  const std::string range = flag.binding.range.empty() ? "" : fmt::format("; {}", flag.binding.range);
  const std::string example =
      flag.traits.example.empty() ? "" : fmt::format(" Example: `--{} {}`", flag.name, flag.traits.example);
  return fmt::format("| `{}` | {}{} | {} | {}.{}{}{} |\n", name, cell(default_of(flag)), cell(range), programs_of(flag),
                     cell(std::string(flag.help)), others(flag.traits.needs, "Needs"),
                     others(flag.traits.excludes, "Not with"), cell(example));
}

std::string page() {
  Options options;
  Requests requests;
  std::string text = fmt::format(
      "# Flags\n\nMade from the table of flags (`apps/flags/flags_*.cpp`) by `{}`. `PROGRAM --help` prints the same.\n",
      kUpdate);
  std::string_view group;
  for (const Flag& flag : make_table(options, requests)) {
    if (title_of(flag.group) != group)
      text += fmt::format("\n## {}\n\n| flag | default; range | programs | effect |\n|---|---|---|---|\n",
                          title_of(flag.group));
    group = title_of(flag.group);
    text += row(flag);
  }
  return text;
}

TEST(FlagsPage, HasEveryRowOfTheTable) {
  const std::string now = page();
  if (std::getenv("MEGALITH_UPDATE_DOCS") != nullptr) std::ofstream(kPage) << now;
  EXPECT_TRUE(text_of_file(kPage) == now) << "docs/flags.md is not what the table of flags says: run " << kUpdate;
}

TEST(FrozenFlags, ANewFlagIsADecision) {
  Options options;
  Requests requests;
  std::set<std::string> now, kept;
  for (const Flag& flag : make_table(options, requests))
    now.insert(fmt::format("{}{}: {}", flag.traits.positional ? "" : "--", flag.name, programs_of(flag)));
  std::istringstream lines(text_of_file(kFrozen));
  std::string before;
  for (std::string line; std::getline(lines, line); before = line) {
    EXPECT_LT(before, line) << "lines are sorted";
    kept.insert(line);
  }
  for (const std::string& line : now)
    EXPECT_TRUE(kept.contains(line)) << line
                                     << ": a new flag, or in a new program. Every flag costs each user and reader: "
                                        "could an existing one do, or the right value be found by the program? If "
                                        "not, add this line to tests/unit/apps/frozen_flags.txt";
  for (const std::string& line : kept)
    EXPECT_TRUE(now.contains(line)) << line
                                    << ": gone, which breaks command lines of users. If that is meant, remove "
                                       "this line of tests/unit/apps/frozen_flags.txt";
}

}  // namespace
}  // namespace megalith

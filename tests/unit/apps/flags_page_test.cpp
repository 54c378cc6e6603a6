// docs/flags.md, an index, and docs/flags/, a page for each section, are made from the table of flags; frozen_flags.txt
// is written by hand, so that a new flag is a decision.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "apps/flags/flags_table.h"
#include "core/base/error.h"
#include "tests/unit/apps/generated_page.h"

namespace megalith::test {
namespace {

constexpr const char* kFrozen = MEGALITH_SOURCE_DIR "/tests/unit/apps/frozen_flags.txt";
constexpr const char* kUpdate = "MEGALITH_UPDATE_DOCS=1 unit_apps --gtest_filter='FlagsPage.*'";

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
                     cell(std::string(flag.help)), others(flag.traits.needs, "Requires"),
                     others(flag.traits.excludes, "Excludes"), cell(example));
}

std::string shown_name(const Flag& flag) {
  return flag.traits.positional ? fmt::format("`{}`", flag.unit) : fmt::format("`--{}`", flag.name);
}

// The first lines of --help: "Usage: ..." and what the program does.
std::string program_row(App app) {
  const std::string help = help_text(app);
  std::string usage, purpose;
  std::istringstream lines(help.substr(0, help.find("\n\n")));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Usage: ")) usage = line.substr(7);
    if (!line.starts_with("Usage: ") && !line.starts_with(' ')) purpose += " " + line;
  }
  return wrapped(split_words(purpose), fmt::format("- `{}`: ", usage), "  ", "");
}

std::string exit_code_rows() {
  std::istringstream lines(exit_codes_text());
  std::string rows, line;
  std::getline(lines, line);  // the title
  while (std::getline(lines, line)) {
    const std::size_t end = line.find("  ", 2);
    rows += fmt::format("| {} | {} |\n", line.substr(2, end - 2), line.substr(line.find_first_not_of(' ', end)));
  }
  return rows;
}

// Pages by their names under docs/.
std::map<std::string, std::string> pages() {
  Options options;
  Requests requests;
  std::map<std::string, std::string> pages;
  std::vector<std::pair<std::string, std::vector<std::string>>> sections;
  for (const Flag& flag : make_table(options, requests)) {
    const std::string title(title_of(flag.group));
    std::string& page = pages[fmt::format("flags/{}.md", title)];
    if (page.empty()) {
      page = fmt::format(
          "# Flags: {}\n\nLook up default, range and effect of the flags in this section. All sections: "
          "[flags.md](../flags.md).\n\n"
          "| flag | default; range | programs | effect |\n|---|---|---|---|\n",
          title);
      sections.emplace_back(title, std::vector<std::string>());
    }
    page += row(flag);
    sections.back().second.push_back(shown_name(flag));
  }
  std::string index = fmt::format(
      "# Flags\n\nFind a flag here, and its default, range and effect on the page of its section. The pages are made\n"
      "from the [table of flags](../apps/flags/flags_table.h), which `PROGRAM --help` prints too, by\n`{}`.\n\n"
      "## Programs\n\n",
      kUpdate);
  for (const App app : kApps) index += program_row(app);
  for (const auto& [title, flags] : sections)
    index += fmt::format("\n## {}\n\n{}", title,
                         wrapped(flags, fmt::format("On [flags/{0}.md](flags/{0}.md): ", title), "", ","));
  index += fmt::format("\n## Exit codes\n\n| code | meaning |\n|---|---|\n{}", exit_code_rows());
  pages["flags.md"] = index;
  return pages;
}

TEST(FlagsPage, HasEveryRowOfTheTable) {
  const auto now = pages();
  for (const auto& [page, text] : now) expect_generated(page, text, kUpdate);
  for (const auto& entry : std::filesystem::directory_iterator(MEGALITH_SOURCE_DIR "/docs/flags")) {
    const std::string page = "flags/" + entry.path().filename().string();
    EXPECT_TRUE(now.contains(page)) << "docs/" << page << ": no section has this page. Remove it";
  }
}

TEST(FrozenFlags, ANewFlagIsADecision) {
  Options options;
  Requests requests;
  std::set<std::string> now, kept;
  for (const Flag& flag : make_table(options, requests))
    now.insert(fmt::format("{}{}: {}", flag.traits.positional ? "" : "--", flag.name, programs_of(flag)));
  std::istringstream lines(read_bytes(kFrozen));
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
}  // namespace megalith::test

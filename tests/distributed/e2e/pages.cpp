#include "tests/distributed/e2e/pages.h"

#include <fmt/format.h>

#include <sstream>
#include <stdexcept>

namespace megalith::test {

namespace {

constexpr const char* kRunMark = "<!-- run -->";
constexpr const char* kOutputMark = "<!-- output -->";
constexpr const char* kGap = "...";

// Walks through the lines of a page, counted from 1.
class PageReader {
 public:
  explicit PageReader(const std::string& markdown) : stream_(markdown) {}

  bool next(std::string* line) {
    ++number_;
    return static_cast<bool>(std::getline(stream_, *line));
  }
  int number() const { return number_; }
  [[noreturn]] void fail(const std::string& problem) const {
    throw std::runtime_error(fmt::format("line {}: {}", number_, problem));
  }

  // Returns the lines of the fenced block that begins at the next line.
  Words block(const std::string& fence) {
    std::string line;
    if (!next(&line) || line != fence) fail("expected " + fence + " below the mark");
    Words lines;
    while (next(&line)) {
      if (line == "```") return lines;
      lines.push_back(line);
    }
    fail("expected the end of the block");
  }

 private:
  std::istringstream stream_;
  int number_ = 0;
};

std::string right_trimmed(const std::string& line) {
  const std::size_t last = line.find_last_not_of(" \t\r");
  return last == std::string::npos ? "" : line.substr(0, last + 1);
}

}  // namespace

std::vector<PageCommand> commands_of_page(const std::string& markdown) {
  std::vector<PageCommand> commands;
  PageReader page(markdown);
  bool expects_output = false;  // the latest command has no output block yet
  for (std::string line; page.next(&line);) {
    if (line == kRunMark) {
      commands.push_back({.line = page.number(), .script = {}, .expected = {}});
      for (const std::string& command : page.block("```sh")) commands.back().script += command + "\n";
      expects_output = true;
    } else if (line == kOutputMark) {
      if (!expects_output) page.fail("expected a command ahead of the output");
      commands.back().expected = page.block("```text");
      expects_output = false;
    }
  }
  return commands;
}

bool matches_line(const std::string& pattern, const std::string& line) {
  const std::size_t gap = pattern.find(kGap);
  if (gap == std::string::npos) return pattern == line;
  if (line.compare(0, gap, pattern, 0, gap) != 0) return false;
  const std::string rest = pattern.substr(gap + std::char_traits<char>::length(kGap));
  for (std::size_t at = gap; at <= line.size(); ++at) {
    if (matches_line(rest, line.substr(at))) return true;
  }
  return false;
}

std::string missing_line(const Words& expected, const std::string& output) {
  std::istringstream stream(output);
  for (const std::string& line : expected) {
    const std::string pattern = right_trimmed(line);
    if (pattern.empty() || pattern == kGap) continue;
    bool found = false;
    for (std::string candidate; !found && std::getline(stream, candidate);) {
      found = matches_line(pattern, right_trimmed(candidate));
    }
    if (!found) return line;
  }
  return {};
}

}  // namespace megalith::test

#include "tests/style/budgets.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "tests/style/function_lines.h"

namespace megalith::style {
namespace {

int lines_of(const std::string& text) { return static_cast<int>(std::ranges::count(text, '\n')); }

int columns_of(const std::string& line) {
  return static_cast<int>(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }));  // UTF-8
}

std::string over(const std::string& what, int got, const std::string& unit, int most) {
  return what + ": " + std::to_string(got) + " " + unit + ", at most " + std::to_string(most);
}

bool holds(const Exception& exception, const std::string& path, const std::string& function) {
  if (function.empty() || exception.function.empty()) return exception.path == path && exception.function == function;
  return path.starts_with(exception.path) && function.starts_with(exception.function);
}

// Checks files and functions, and remembers which exceptions they used.
class Lengths {
 public:
  Lengths(const std::vector<Exception>& exceptions, std::vector<std::string>& breaches)
      : exceptions_(exceptions), breaches_(breaches), used_(exceptions.size()) {}

  void check_file(const std::string& path, const std::string& text) {
    const int lines = lines_of(text);
    if (const int most = budget(path, "", lines, kMaxLinesOfFile); lines > most)
      breaches_.push_back(over(path, lines, "lines", most));
    const bool kernels = path.ends_with(".cu") || path.ends_with(".cuh");
    const auto functions = functions_of(text);
    if (!functions) {
      breaches_.push_back(path + ": braces do not balance, so the lines of its functions cannot be counted");
      return;
    }
    for (const Function& function : *functions) {
      const int most = budget(path, function.name, function.lines, kernels ? kMaxLinesOfKernel : kMaxLinesOfFunction);
      if (function.lines <= most) continue;
      const std::string place = path + ":" + std::to_string(function.line) + ": " + function.name;
      breaches_.push_back(over(place, function.lines, "lines", most));
    }
  }

  void check_exceptions() {
    for (std::size_t i = 0; i < exceptions_.size(); ++i) {
      if (used_[i]) continue;
      const std::string& function = exceptions_[i].function;
      breaches_.push_back(exceptions_[i].path + (function.empty() ? "" : ": " + function) +
                          ": needs no exception in tests/style/budgets.cpp");
    }
    if (exceptions_.size() > 10) breaches_.emplace_back("tests/style/budgets.cpp: more than ten exceptions");
  }

 private:
  int budget(const std::string& path, const std::string& function, int lines, int most) {
    for (std::size_t i = 0; i < exceptions_.size(); ++i) {
      if (!holds(exceptions_[i], path, function)) continue;
      if (lines > most) used_[i] = true;
      return exceptions_[i].lines;
    }
    return most;
  }

  const std::vector<Exception>& exceptions_;
  std::vector<std::string>& breaches_;
  std::vector<bool> used_;
};

}  // namespace

const std::vector<Exception>& exceptions_of_budgets() {
  static const std::vector<Exception> exceptions = {
      {"apps/flags/flags_", "add_", 160, "tables of the flags of a section, one row a flag"},
      {"parallel/comm/nccl/nccl_communicator.cpp", "", 420,
       "one class, of which each part needs the handles of the others"},
      {"tests/unit/device/hazard_checker_test.cpp", "", 440, "cases of one fixture"},
  };
  return exceptions;
}

std::vector<std::string> check_budgets(const std::map<std::string, std::string>& texts,
                                       const std::vector<Exception>& exceptions) {
  std::vector<std::string> breaches;
  std::map<std::string, int> folders;
  Lengths lengths(exceptions, breaches);
  for (const auto& [path, text] : texts) {
    ++folders[path.substr(0, path.rfind('/'))];
    lengths.check_file(path, text);
    std::istringstream stream(text);
    std::string line;
    for (int number = 1; std::getline(stream, line); ++number) {
      if (const int columns = columns_of(line); columns > kMaxColumns)
        breaches.push_back(over(path + ":" + std::to_string(number), columns, "columns", kMaxColumns));
    }
  }
  for (const auto& [folder, files] : folders)
    if (files > kMaxFilesOfFolder) breaches.push_back(over(folder, files, "source files", kMaxFilesOfFolder));
  lengths.check_exceptions();
  return breaches;
}

std::vector<std::string> lines_by_room(const std::map<std::string, std::string>& texts) {
  std::map<std::string, int> rooms;
  for (const auto& [path, text] : texts) rooms[path.substr(0, path.find('/'))] += lines_of(text);
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [room, lines] : rooms) sorted.emplace_back(lines, room);
  std::ranges::sort(sorted, std::greater());
  std::vector<std::string> out;
  for (const auto& [lines, room] : sorted) out.push_back(room + " " + std::to_string(lines));
  return out;
}

}  // namespace megalith::style

#include "tests/style/budgets.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

namespace megalith::style {
namespace {

int lines_of(const std::string& text) { return static_cast<int>(std::ranges::count(text, '\n')); }

int columns_of(const std::string& line) {
  return static_cast<int>(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }));  // UTF-8
}

std::string over(const std::string& what, int got, const std::string& unit, int most) {
  return what + ": " + std::to_string(got) + " " + unit + ", at most " + std::to_string(most);
}

}  // namespace

const std::vector<LongFile>& long_files() {
  static const std::vector<LongFile> files = {
      {"parallel/comm/nccl/nccl_communicator.cpp", 420,
       "one class, of which each part needs the handles of the others"},
      {"tests/bench/cuda_ops_bench.cpp", 430, "one table of benches, read from top to bottom"},
      {"tests/unit/device/hazard_checker_test.cpp", 440, "cases of one fixture"},
  };
  return files;
}

std::vector<std::string> check_budgets(const std::map<std::string, std::string>& texts,
                                       const std::vector<LongFile>& exceptions) {
  std::vector<std::string> breaches;
  std::map<std::string, int> folders;
  std::set<std::string> used;
  for (const auto& [path, text] : texts) {
    ++folders[path.substr(0, path.rfind('/'))];
    const auto exception = std::ranges::find(exceptions, path, &LongFile::path);
    const int most = exception == exceptions.end() ? kMaxLinesOfFile : exception->lines;
    const int lines = lines_of(text);
    if (lines > most) breaches.push_back(over(path, lines, "lines", most));
    if (exception != exceptions.end() && lines > kMaxLinesOfFile) used.insert(path);
    std::istringstream stream(text);
    std::string line;
    for (int number = 1; std::getline(stream, line); ++number) {
      if (const int columns = columns_of(line); columns > kMaxColumns)
        breaches.push_back(over(path + ":" + std::to_string(number), columns, "columns", kMaxColumns));
    }
  }
  for (const auto& [folder, files] : folders)
    if (files > kMaxFilesOfFolder) breaches.push_back(over(folder, files, "source files", kMaxFilesOfFolder));
  for (const LongFile& file : exceptions)
    if (!used.contains(file.path)) breaches.push_back(file.path + ": needs no exception in tests/style/budgets.cpp");
  if (exceptions.size() > 10) breaches.emplace_back("tests/style/budgets.cpp: more than ten exceptions");
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

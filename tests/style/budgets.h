// Budgets of the tree: source files of a folder, lines of a file, columns of a line.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace megalith::style {

inline constexpr int kMaxFilesOfFolder = 40;  // subfolders count by themselves
inline constexpr int kMaxLinesOfFile = 400;
inline constexpr int kMaxColumns = 120;

// A file that may have more lines than others.
struct LongFile {
  std::string path;
  int lines;
  std::string reason;
};
// At most ten.
const std::vector<LongFile>& long_files();

// One line for each folder, file and line above its budget, and for each of `exceptions` that needs none or is gone.
// `texts` are the project's sources by path.
std::vector<std::string> check_budgets(const std::map<std::string, std::string>& texts,
                                       const std::vector<LongFile>& exceptions);

// Lines of sources by room, "core 28400", and of tests; the largest first.
std::vector<std::string> lines_by_room(const std::map<std::string, std::string>& texts);

}  // namespace megalith::style

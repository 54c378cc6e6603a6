// Budgets of the tree: source files of a folder, lines of a file and of a function, columns of a line.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace megalith::style {

inline constexpr int kMaxFilesOfFolder = 40;  // subfolders count by themselves
inline constexpr int kMaxLinesOfFile = 400;
inline constexpr int kMaxColumns = 120;
inline constexpr int kMaxLinesOfFunction = 60;
inline constexpr int kMaxLinesOfKernel = 150;  // any function of a .cu or .cuh file

// What may have more lines than others: a file, or the functions with one beginning of their names.
struct Exception {
  std::string path;      // for functions: how the paths of their files begin
  std::string function;  // empty for a file
  int lines = 0;
  std::string reason;
};
// At most ten.
const std::vector<Exception>& exceptions_of_budgets();

// One line for each folder, file, function and line above its budget, and for each of `exceptions` that is not needed.
// `texts` are the project's sources by path.
std::vector<std::string> check_budgets(const std::map<std::string, std::string>& texts,
                                       const std::vector<Exception>& exceptions);

// Lines of sources by room, "core 28400", and of tests; the largest first.
std::vector<std::string> lines_by_room(const std::map<std::string, std::string>& texts);

}  // namespace megalith::style

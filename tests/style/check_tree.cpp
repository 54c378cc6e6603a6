// Checks the working tree: include direction, a source's own header first, files touched through one layer, no CUDA in
// the build without it, the processor check at the start of every program, and budgets of folders, files, functions and
// lines.
//   check_tree REPOSITORY     exit 0 when nothing is wrong, 1 otherwise; also 1 when it finds suspiciously few files.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "tests/style/budgets.h"
#include "tests/style/include_rules.h"
#include "tests/style/kernel_names.h"

namespace fs = std::filesystem;

namespace {

std::string read_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool is_source(const fs::path& path) {
  const std::string ext = path.extension().string();
  return ext == ".h" || ext == ".cpp" || ext == ".cu" || ext == ".cuh" || ext == ".html";  // embedded in a program
}

// `main` of a program begins with the processor check: any instruction before it may be one that is missing.
bool begins_with_cpu_check(const std::string& text) {
  static const std::regex kMain(R"(int main\([^)]*\)\s*\{\s*(using [^;]*;\s*)*(megalith::)?require_cpu_baseline\(\);)");
  return std::regex_search(text, kMain);
}

// The header of a source's name is its first include: so each such header is shown to compile alone.
bool includes_own_header_first(const std::string& path, const std::string& text) {
  const std::string header = path.substr(0, path.size() - 4) + ".h";
  return text.substr(text.find("#include")).starts_with("#include \"" + header + "\"");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: check_tree REPOSITORY\n");
    return 2;
  }
  const fs::path root = argv[1];
  std::vector<std::string> breaches;
  std::map<std::string, std::string> texts;
  for (const char* folder : {"apps", "core", "parallel", "moe", "fsdp", "offload", "graphs", "tests"}) {
    if (!fs::exists(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string path = fs::relative(entry.path(), root).generic_string();
      const std::string text = read_text(entry.path());
      for (std::string& breach : megalith::style::check_includes(path, text)) breaches.push_back(std::move(breach));
      for (std::string& breach : megalith::style::check_file_access(path, text)) breaches.push_back(std::move(breach));
      if (path.starts_with("apps/") && text.find("int main(") != std::string::npos && !begins_with_cpu_check(text)) {
        breaches.push_back(path + ": main must begin with require_cpu_baseline(); (core/base/machine/cpu_check.h)");
      }
      texts.emplace(path, text);
    }
  }
  for (const auto& [path, text] : texts) {
    const bool product = path.ends_with(".cpp") && !path.starts_with("tests/");
    if (product && texts.contains(path.substr(0, path.size() - 4) + ".h") && !includes_own_header_first(path, text)) {
      breaches.push_back(path + ": its own header must be its first include");
    }
  }
  for (std::string& breach : megalith::style::check_readers(texts)) breaches.push_back(std::move(breach));
  for (std::string& breach : megalith::style::check_cpu_build(texts)) breaches.push_back(std::move(breach));
  for (std::string& breach : megalith::style::check_kernel_names(texts)) breaches.push_back(std::move(breach));
  for (std::string& breach : megalith::style::check_budgets(texts, megalith::style::exceptions_of_budgets()))
    breaches.push_back(std::move(breach));
  for (const std::string& room : megalith::style::lines_by_room(texts)) std::printf("%s lines\n", room.c_str());
  for (const std::string& breach : breaches) std::fprintf(stderr, "%s\n", breach.c_str());
  std::printf("%zu files checked, %zu breaches\n", texts.size(), breaches.size());
  return breaches.empty() && texts.size() >= 10 ? 0 : 1;
}

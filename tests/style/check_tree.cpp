// Checks the working tree: include direction, a source's own header first, files touched through one layer, no CUDA in
// the build without it, the processor check at the start of every program, budgets of folders, files, functions and
// lines, words that may only become fewer, and the length and links of pages.
//   check_tree REPOSITORY          exits with 0, or with 1 if it finds a breach or suspiciously few files
//   check_tree REPOSITORY FOLDER   lists the counted words of one folder or file (word_ratchet.h)
// With MEGALITH_UPDATE_RATCHET=1 in the environment it first lowers the maxima of words to the counts of today.
#include <cstdio>
#include <cstdlib>
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
#include "tests/style/pages.h"
#include "tests/style/prose.h"
#include "tests/style/word_ratchet.h"

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

using Texts = std::map<std::string, std::string>;
using Breaches = std::vector<std::string>;

void append(Breaches& breaches, Breaches more) {
  for (std::string& breach : more) breaches.push_back(std::move(breach));
}

// Reads the sources of all rooms, and what is wrong with each of them alone.
Texts read_sources(const fs::path& root, Breaches& breaches) {
  Texts texts;
  for (const char* folder : {"apps", "core", "parallel", "moe", "fsdp", "offload", "graphs", "tests"}) {
    if (!fs::exists(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      const std::string path = fs::relative(entry.path(), root).generic_string();
      const std::string text = read_text(entry.path());
      append(breaches, megalith::style::check_includes(path, text));
      append(breaches, megalith::style::check_file_access(path, text));
      if (path.starts_with("apps/") && text.find("int main(") != std::string::npos && !begins_with_cpu_check(text)) {
        breaches.push_back(path + ": main must begin with require_cpu_baseline(); (core/base/machine/cpu_check.h)");
      }
      texts.emplace(path, text);
    }
  }
  return texts;
}

// Reads every file whose words are counted: in the root, and in folders that no build or run writes.
Texts read_prose(const fs::path& root) {
  Texts texts;
  const auto read = [&](const fs::directory_entry& entry) {
    const std::string path = fs::relative(entry.path(), root).generic_string();
    if (entry.is_regular_file() && megalith::style::language_of(path)) texts.emplace(path, read_text(entry.path()));
  };
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) read(entry);
  for (const char* folder : {".github", "apps", "cmake", "configs", "core", "docs", "fsdp", "graphs", "moe", "offload",
                             "parallel", "tests"}) {
    if (!fs::exists(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) read(entry);
  }
  return texts;
}

void check_words_of(const fs::path& root, const Texts& texts, Breaches& breaches) {
  const fs::path table = root / "tests/style/word_ratchet.txt";
  auto maxima = megalith::style::read_word_table(read_text(table));
  if (std::getenv("MEGALITH_UPDATE_RATCHET") != nullptr) {
    maxima = megalith::style::lowered_maxima(maxima, megalith::style::count_words(texts));
    std::ofstream(table) << megalith::style::write_word_table(maxima);
  }
  append(breaches, megalith::style::check_words(texts, maxima));
}

void check_pages_of(const fs::path& root, const Texts& texts, Breaches& breaches) {
  Texts pages;
  for (const auto& [path, text] : texts)
    if (path.ends_with(".md")) pages.emplace(path, text);
  append(breaches,
         megalith::style::check_pages(pages, [&](const std::string& path) { return fs::exists(root / path); }));
  append(breaches, megalith::style::check_nav(pages, read_text(root / "mkdocs.yml")));
}

void check_sources(const Texts& texts, Breaches& breaches) {
  for (const auto& [path, text] : texts) {
    const bool product = path.ends_with(".cpp") && !path.starts_with("tests/");
    if (product && texts.contains(path.substr(0, path.size() - 4) + ".h") && !includes_own_header_first(path, text)) {
      breaches.push_back(path + ": its own header must be its first include");
    }
  }
  append(breaches, megalith::style::check_readers(texts));
  append(breaches, megalith::style::check_cpu_build(texts));
  append(breaches, megalith::style::check_kernel_names(texts));
  append(breaches, megalith::style::check_budgets(texts, megalith::style::exceptions_of_budgets()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: check_tree REPOSITORY [FOLDER]\n");
    return 2;
  }
  const fs::path root = argv[1];
  const Texts prose = read_prose(root);
  if (argc == 3) {
    for (const std::string& place : megalith::style::list_words(prose, argv[2])) std::printf("%s\n", place.c_str());
    return 0;
  }
  Breaches breaches;
  const Texts texts = read_sources(root, breaches);
  check_sources(texts, breaches);
  check_words_of(root, prose, breaches);
  check_pages_of(root, prose, breaches);
  for (const std::string& room : megalith::style::lines_by_room(texts)) std::printf("%s lines\n", room.c_str());
  for (const std::string& breach : breaches) std::fprintf(stderr, "%s\n", breach.c_str());
  std::printf("%zu files checked, %zu breaches\n", texts.size(), breaches.size());
  return breaches.empty() && texts.size() >= 10 ? 0 : 1;
}

// Comparison of a page of docs with what the program's tables say; MEGALITH_UPDATE_DOCS=1 writes the page first.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/test_folder.h"

namespace megalith::test {

// `page` is relative to docs/; `update` is the command that writes it.
inline void expect_generated(const std::string& page, const std::string& now, std::string_view update) {
  const std::string path = MEGALITH_SOURCE_DIR "/docs/" + page;
  if (std::getenv("MEGALITH_UPDATE_DOCS") != nullptr) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    write_bytes(path, now);
  }
  EXPECT_TRUE(read_bytes(path) == now) << "docs/" << page << " differs from the program's tables. Run " << update;
}

// Joins words with `separator` and breaks lines at 118 columns; lines after the first begin with `indent`.
inline std::string wrapped(const std::vector<std::string>& words, std::string_view first, std::string_view indent,
                           std::string_view separator) {
  constexpr std::size_t kColumns = 118;
  std::string text(first);
  std::size_t column = first.size();
  bool begins = true;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = fmt::format("{}{}", words[i], i + 1 < words.size() ? separator : "");
    if (!begins && column + 1 + word.size() > kColumns) {
      text += fmt::format("\n{}", indent);
      column = indent.size();
      begins = true;
    }
    if (!begins) text += ' ', ++column;
    text += word;
    column += word.size();
    begins = false;
  }
  return text + "\n";
}

inline std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::istringstream stream{std::string(text)};
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace megalith::test

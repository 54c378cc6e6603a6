// Prose of a file: comments and string literals of a source, text of a Markdown page without its code and quotations.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace megalith::style {

enum class Language {
  kCode,    // C++, CUDA, and pages with JavaScript
  kScript,  // shell, CMake, TOML, YAML and Python: comments begin with #
  kMarkdown,
};
// Language of a file by its name; nullopt where its words are not counted, such as texts for training.
std::optional<Language> language_of(const std::string& path);

inline constexpr char kBreak = '\1';   // stands for code: no sentence crosses it
inline constexpr char kQuoted = '\2';  // stands for inline code and quotations: part of a sentence, but no word

// Replaces every character that is not prose; the result has the length and the lines of `text`.
std::string prose_of(const std::string& text, Language language);

// Tells which lines of a Markdown page are fenced code, the fences included; takes the lines in order.
class Fences {
 public:
  bool hold(std::string_view line);

 private:
  std::string fence_;  // open one; empty: none
};

// Whether `c` may be a part of a C++ identifier, and whether it is a space or a line end.
bool is_word_char(char c);
bool is_blank(char c);

// Returns the end of the C++ literal or comment that begins at `at`; `at` itself where none begins.
std::size_t end_of_literal(const std::string& text, std::size_t at);

}  // namespace megalith::style

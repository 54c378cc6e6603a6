// Tokens of a template: text between tags, and the words of tags. White space is removed as by Jinja with trim_blocks
// and lstrip_blocks, which chat templates require.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::jinja {

inline constexpr std::size_t kMaxTemplateBytes = std::size_t{256} << 10;

enum class TokenKind {
  kText,
  kOutputBegin,
  kOutputEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;    // of a string: its value
  std::size_t at = 0;  // byte of the source
};

// Template's text for messages and for the lexer.
struct Source {
  std::string name;
  std::string text;  // normalized
};

// Checks size and UTF-8. Line ends become \n, and a line end at the end of the file is removed.
Source normalized_source(std::string name, std::string_view text);

std::string place_of(const Source& source, std::size_t at);  // NAME:LINE:COLUMN
[[noreturn]] void refuse_at(const Source& source, std::size_t at, const std::string& expected, const std::string& got,
                            const std::string& remedy);

std::vector<Token> lex(const Source& source);

}  // namespace megalith::jinja

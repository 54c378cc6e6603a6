#include "core/chat/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/text/text.h"
#include "core/base/text/utf8.h"
#include "core/chat/python_text.h"

namespace megalith::jinja {

namespace {

constexpr std::string_view kRemedy = "correct the template";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_digit(c) || is_letter(c); }

// Value of a string literal: Python's escapes.
class StringLiteral {
 public:
  StringLiteral(const Source& source, std::size_t begin, std::size_t end) : source_(source), at_(begin), end_(end) {}

  std::string value() {
    while (at_ < end_) {
      const char c = source_.text[at_++];
      if (c == '\\') {
        add_escape();
      } else {
        value_ += c;
      }
    }
    return std::move(value_);
  }

 private:
  [[noreturn]] void refuse(std::string_view got) const {
    refuse_at(source_, at_, "a string escape of Python", std::string(got), std::string(kRemedy));
  }

  void add_escape() {
    constexpr std::string_view kNames = "\\'\"abfnrtv\n";
    constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_.text[at_++];
    if (const std::size_t known = kNames.find(c); known != kNames.npos) {
      if (known < kValues.size()) value_ += kValues[known];  // a line end is removed
      return;
    }
    if (c >= '0' && c <= '7') return add_octal(c);
    if (c == 'x') return add_hex(2);
    if (c == 'u') return add_hex(4);
    if (c == 'U') return add_hex(8);
    if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) refuse("another character");
    value_ += '\\';
    value_ += c;
  }

  void add_octal(char first) {
    std::uint32_t code = static_cast<std::uint32_t>(first - '0');
    for (int i = 0; i < 2 && at_ < end_ && source_.text[at_] >= '0' && source_.text[at_] <= '7'; ++i) {
      code = code * 8 + static_cast<std::uint32_t>(source_.text[at_++] - '0');
    }
    append_utf8(value_, code);
  }

  void add_hex(int digits) {
    std::uint32_t code = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const std::size_t digit =
          at_ < end_ ? std::string_view("0123456789abcdef0123456789ABCDEF").find(source_.text[at_]) : std::string::npos;
      if (digit == std::string::npos) refuse("too few hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(digit % 16);
    }
    if (code >= kCodePoints || (code >= 0xd800 && code <= 0xdfff)) refuse("no character of Unicode");
    append_utf8(value_, code);
  }

  const Source& source_;
  std::size_t at_, end_;
  std::string value_;
};

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const std::size_t tag = find_tag();
      if (tag == text_.npos) {
        add(TokenKind::kText, std::string(text_.substr(at_)), at_);
        break;
      }
      lex_tag(tag);
    }
    add(TokenKind::kEnd, "", text_.size());
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(std::size_t at, const std::string& expected, const std::string& got) const {
    refuse_at(source_, at, expected, got, std::string(kRemedy));
  }

  void add(TokenKind kind, std::string text, std::size_t at) {
    if (kind == TokenKind::kText && text.empty()) return;
    tokens_.push_back({.kind = kind, .text = std::move(text), .at = at});
  }

  bool has(std::size_t at, std::string_view word) const { return text_.substr(at, word.size()) == word; }

  std::size_t find_tag() const {
    std::size_t at = text_.find('{', at_);
    while (at != text_.npos && !has(at, "{%") && !has(at, "{{") && !has(at, "{#")) at = text_.find('{', at + 1);
    return at;
  }

  std::size_t skip_space(std::size_t at) const {
    return at + (text_.size() - at - strip_left(text_.substr(at)).size());
  }

  // Adds the text from `at_` to a tag, of which `sign` is the character after its beginning.
  void add_text(std::size_t tag, char sign, bool is_output) {
    std::string_view text = text_.substr(at_, tag - at_);
    if (sign == '-') {
      text = strip_right(text);
    } else if (sign != '+' && !is_output) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t line = newline == text.npos ? 0 : newline + 1;
      if ((line > 0 || at_line_begin_) && strip_left(text.substr(line)).empty()) text = text.substr(0, line);
    }
    add(TokenKind::kText, std::string(text), at_);
  }

  void lex_tag(std::size_t tag) {
    const char after = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    const char sign = after == '-' || after == '+' ? after : ' ';
    const bool is_output = has(tag, "{{");
    add_text(tag, sign, is_output);
    const std::size_t content = tag + (sign == ' ' ? 2 : 3);
    if (has(tag, "{#")) {
      skip_comment(tag, content);
    } else if (const std::optional<std::size_t> raw = is_output ? std::nullopt : end_of_word_tag(content, "raw")) {
      lex_raw(tag, *raw);
    } else {
      add(is_output ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "", tag);
      at_ = content;
      while (!end_tag(is_output)) lex_word(tag);
    }
    at_line_begin_ = at_ > 0 && text_[at_ - 1] == '\n';
  }

  void skip_comment(std::size_t tag, std::size_t content) {
    const std::size_t end = text_.find("#}", content);
    if (end == text_.npos) refuse(tag, "an end of the comment, #}", "none");
    const char sign = end > content ? text_[end - 1] : ' ';
    at_ = after_block_end(end + 2, sign);
  }

  // Position after an end of a block or comment: '-' removes white space, '+' nothing, and else one line end.
  std::size_t after_block_end(std::size_t at, char sign) const {
    if (sign == '-') return skip_space(at);
    return sign != '+' && has(at, "\n") ? at + 1 : at;
  }

  // If the block tag at `at` is `word` alone: the position after it, without the removal of a line end.
  std::optional<std::size_t> end_of_word_tag(std::size_t at, std::string_view word) const {
    at = skip_space(at);
    if (!has(at, word)) return std::nullopt;
    at = skip_space(at + word.size());
    if (has(at, "-%}")) return skip_space(at + 3);
    if (has(at, "+%}") && word == "endraw") return at + 3;
    if (!has(at, "%}")) return std::nullopt;
    return at + 2;
  }

  void lex_raw(std::size_t tag, std::size_t content) {
    at_ = content;
    at_line_begin_ = text_[at_ - 1] == '\n';
    for (std::size_t end = text_.find("{%", at_); end != text_.npos; end = text_.find("{%", end + 1)) {
      const char after = end + 2 < text_.size() ? text_[end + 2] : ' ';
      const bool has_sign = after == '-' || after == '+';
      const std::optional<std::size_t> next = end_of_word_tag(end + (has_sign ? 3 : 2), "endraw");
      if (!next) continue;
      add_text(end, after, false);
      const bool trims = text_[*next - 1] == '}' && text_[*next - 3] != '+' && has(*next, "\n");
      at_ = *next + (trims ? 1 : 0);
      return;
    }
    refuse(tag, "{% endraw %}", "none");
  }

  // Adds the end of the tag, if it is next.
  bool end_tag(bool is_output) {
    at_ = skip_space(at_);
    if (!brackets_.empty()) return false;
    const std::size_t begin = at_;
    if (is_output) {
      if (has(at_, "-}}")) {
        at_ = skip_space(at_ + 3);
      } else if (has(at_, "}}")) {
        at_ += 2;
      }
    } else if (has(at_, "-%}") || has(at_, "+%}")) {
      at_ = after_block_end(at_ + 3, text_[at_]);
    } else if (has(at_, "%}")) {
      at_ = after_block_end(at_ + 2, ' ');
    }
    if (at_ == begin) return false;
    add(is_output ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "", begin);
    return true;
  }

  void lex_word(std::size_t tag) {
    if (at_ == text_.size()) refuse(tag, "an end of the tag", "the end of the template");
    const char c = text_[at_];
    if (is_digit(c)) return lex_number();
    if (is_letter(c)) {
      std::size_t end = at_;
      while (end < text_.size() && is_word(text_[end])) ++end;
      add(TokenKind::kName, std::string(text_.substr(at_, end - at_)), at_);
      at_ = end;
      return;
    }
    if (c == '"' || c == '\'') return lex_string(c);
    lex_operator();
  }

  std::size_t digits_end(std::size_t at) const {
    while (at < text_.size() && (is_digit(text_[at]) || (text_[at] == '_' && at + 1 < text_.size() &&
                                                         is_digit(text_[at + 1]) && is_digit(text_[at - 1])))) {
      ++at;
    }
    return at;
  }

  void lex_number() {
    const std::size_t begin = at_;
    const bool after_dot = begin > 0 && text_[begin - 1] == '.';
    std::size_t end = digits_end(begin);
    bool is_float = false;
    if (!after_dot) {
      const auto digit_at = [&](std::size_t at) { return at < text_.size() && is_digit(text_[at]); };
      if (has(end, ".") && digit_at(end + 1)) {
        end = digits_end(end + 1);
        is_float = true;
      }
      if (has(end, "e") || has(end, "E")) {
        const std::size_t exponent = end + (has(end + 1, "+") || has(end + 1, "-") ? 2 : 1);
        if (digit_at(exponent)) {
          end = digits_end(exponent);
          is_float = true;
        }
      }
    }
    std::string number(text_.substr(begin, end - begin));
    std::erase(number, '_');
    if (!is_float && number.size() > 1 && number[0] == '0') refuse(begin, "a decimal number", number);
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(number), begin);
    at_ = end;
  }

  void lex_string(char quote) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) refuse(at_, "an end of the string", "none");
    add(TokenKind::kString, StringLiteral(source_, at_ + 1, end).value(), at_);
    at_ = end + 1;
  }

  void lex_operator() {
    constexpr std::string_view kLong[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kShort = "+-/*%~[](){}><=.:|,";
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    std::size_t bytes = 1;
    for (const std::string_view word : kLong) bytes = has(at_, word) ? 2 : bytes;
    const char c = text_[at_];
    if (bytes == 1 && kShort.find(c) == kShort.npos) {
      refuse(at_, "an expression", escaped_short(text_.substr(at_, decode_utf8(text_, at_).bytes)));
    }
    if (const std::size_t open = kOpen.find(c); open != kOpen.npos) brackets_ += kClose[open];
    if (kClose.find(c) != kClose.npos) {
      if (brackets_.empty() || brackets_.back() != c) {
        refuse(at_, brackets_.empty() ? "no closing bracket" : fmt::format("'{}'", brackets_.back()),
               fmt::format("'{}'", c));
      }
      brackets_.pop_back();
    }
    add(TokenKind::kOperator, std::string(text_.substr(at_, bytes)), at_);
    at_ += bytes;
  }

  const Source& source_;
  std::string_view text_;
  std::size_t at_ = 0;
  bool at_line_begin_ = true;
  std::string brackets_;  // that close the open ones
  std::vector<Token> tokens_;
};

}  // namespace

Source normalized_source(std::string name, std::string_view text) {
  if (text.size() > kMaxTemplateBytes) {
    refuse_format(name, fmt::format("a template of at most {} bytes", kMaxTemplateBytes), std::to_string(text.size()),
                  "shorten the template");
  }
  if (!is_utf8(text)) refuse_format(name, "a template in UTF-8", "other bytes", "save the template as UTF-8");
  Source source{.name = std::move(name), .text = {}};
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      source.text += text[i];
    } else if (i + 1 == text.size() || text[i + 1] != '\n') {
      source.text += '\n';
    }
  }
  if (source.text.ends_with('\n')) source.text.pop_back();
  return source;
}

std::string place_of(const Source& source, std::size_t at) {
  const std::string_view before = std::string_view(source.text).substr(0, at);
  const std::size_t newline = before.rfind('\n');
  const std::string_view line = newline == before.npos ? before : before.substr(newline + 1);
  return fmt::format("{}:{}:{}", source.name, std::ranges::count(before, '\n') + 1, count_characters(line) + 1);
}

void refuse_at(const Source& source, std::size_t at, const std::string& expected, const std::string& got,
               const std::string& remedy) {
  refuse_format(place_of(source, at), expected, got, remedy);
}

std::vector<Token> lex(const Source& source) { return Lexer(source).run(); }

}  // namespace megalith::jinja

#include "tests/style/function_lines.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "tests/style/prose.h"

namespace megalith::style {
namespace {

template <std::size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N>& words) {
  return std::ranges::find(words, word) != words.end();
}

// The text with spaces for comments, literals and preprocessor lines. Its lines are where they were.
std::string without_literals(const std::string& text) {
  std::string out = text;
  const auto blank = [&](std::size_t from, std::size_t to) {
    for (; from < to; ++from)
      if (out[from] != '\n') out[from] = ' ';
  };
  bool line_is_empty = true;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = end_of_literal(text, i);
    if (end == i && line_is_empty && text[i] == '#') {
      end = std::min(text.find('\n', i), text.size());
      while (end < text.size() && text[end - 1] == '\\') end = std::min(text.find('\n', end + 1), text.size());
    }
    if (end == i) {
      line_is_empty = text[i] == '\n' || (line_is_empty && text[i] == ' ');
      ++i;
    } else {
      blank(i, end);
      i = end;
    }
  }
  return out;
}

struct Token {
  std::string_view text;  // a word, or one character; "::" is one token
  int line = 0;
};

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> out;
  int line = 1;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (is_word_char(text[i])) {
      while (end < text.size() && is_word_char(text[end])) ++end;
    } else if (text.substr(i, 2) == "::") {
      ++end;
    }
    if (text[i] == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(text[i])) == 0) out.push_back({text.substr(i, end - i), line});
    i = end;
  }
  return out;
}

// What has been read of a declaration, between parentheses left out.
class Head {
 public:
  void add(std::string_view token) {
    if (token == ":" && is_one_of(last_, kAccess)) {
      *this = {};
      return;
    }
    if (token == "(" && !name_.has_value() && !is_one_of(last_, kNotNames)) name_ = last_;
    if (token == ":" && name_.has_value()) initialisers_ = true;
    if (token == "=" && !operator_) assigned_ = true;
    if (token == "operator") operator_ = true;
    if (token == "namespace") namespace_ = true;
    if (is_one_of(token, kClasses)) class_ = true;
    if (last_.empty()) extern_ = token == "extern";
    last_ = token;
  }

  // A brace here opens declarations, ...
  bool opens_scope() const { return !assigned_ && (namespace_ || opens_class() || (extern_ && last_ == "extern")); }
  // ... the body of a function, or else values or enumerators.
  bool opens_function() const {
    if (assigned_ || namespace_ || opens_class() || !name_.has_value()) return false;
    return !initialisers_ || last_ == ")" || last_ == "}";
  }
  std::string name() const { return std::string(*name_); }

 private:
  static constexpr std::array<std::string_view, 3> kAccess = {"public", "private", "protected"};
  static constexpr std::array<std::string_view, 3> kClasses = {"class", "struct", "union"};
  static constexpr std::array<std::string_view, 3> kAfterParameters = {"const", "noexcept", "override"};
  static constexpr std::array<std::string_view, 6> kNotNames = {"__launch_bounds__", "alignas",  "__align__",
                                                                "__attribute__",     "decltype", "requires"};

  bool opens_class() const { return class_ && last_ != ")" && !is_one_of(last_, kAfterParameters); }

  std::string_view last_;
  std::optional<std::string_view> name_;
  bool initialisers_ = false, assigned_ = false, operator_ = false, namespace_ = false, class_ = false, extern_ = false;
};

class Reader {
 public:
  explicit Reader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  std::optional<std::vector<Function>> read() {
    Head head;
    int scopes = 0;
    for (at_ = 0; at_ < tokens_.size(); ++at_) {
      const std::string_view token = tokens_[at_].text;
      if (token == "{" && head.opens_scope()) {
        ++scopes;
        head = {};
      } else if (token == "{") {
        if (!read_braces(head)) return std::nullopt;
      } else if (token == "}" || token == ";") {
        if (token == "}" && --scopes < 0) return std::nullopt;
        head = {};
      } else if (token == "template") {
        if (!skip("<", ">")) return std::nullopt;
      } else {
        head.add(token);
        if (token == "(" || token == "[") {
          if (!skip(token, token == "(" ? ")" : "]")) return std::nullopt;
          head.add(tokens_[at_].text);
        }
      }
    }
    return scopes == 0 ? std::optional(std::move(functions_)) : std::nullopt;
  }

 private:
  // At the brace that opens a body or values, to the one that closes it.
  bool read_braces(Head& head) {
    const int line = tokens_[at_].line;
    if (!skip("{", "}")) return false;
    if (head.opens_function()) {
      functions_.push_back({head.name(), line, tokens_[at_].line - line + 1});
      head = {};
    } else {
      head.add("}");
    }
    return true;
  }

  // From `open`, here or at the next token, to the `close` of the same level; false where there is none.
  bool skip(std::string_view open, std::string_view close) {
    if (tokens_[at_].text != open && (++at_ == tokens_.size() || tokens_[at_].text != open)) {
      --at_;
      return true;  // template without parameters of its own: an explicit instantiation
    }
    for (int depth = 0; at_ < tokens_.size(); ++at_) {
      if (tokens_[at_].text == open) ++depth;
      if (tokens_[at_].text == close && --depth == 0) return true;
    }
    return false;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  std::vector<Function> functions_;
};

}  // namespace

std::optional<std::vector<Function>> functions_of(const std::string& text) {
  const std::string code = without_literals(text);
  return Reader(tokens_of(code)).read();
}

}  // namespace megalith::style

#include "tests/style/prose.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace megalith::style {
namespace {

// Replaces all but line ends.
void fill(std::string& out, std::size_t from, std::size_t to, char with) {
  for (to = std::min(to, out.size()); from < to; ++from)
    if (out[from] != '\n') out[from] = with;
}

// A backslash and the character after it are two spaces, and an escaped quote is a quote: "a \"b\"\nOf" reads as text.
void unescape(std::string& out, std::size_t from, std::size_t to) {
  for (; from + 1 < to; ++from) {
    if (out[from] != '\\') continue;
    out[from] = ' ';
    if (out[++from] != '"' && out[from] != '\n') out[from] = ' ';
  }
}

// Separates a comment from a literal or from code in the same place.
void open_comment(std::string& out, std::size_t at, std::size_t marks, bool follows_comment) {
  fill(out, at, at + marks, ' ');
  if (!follows_comment) out[at] = kBreak;
}

std::string prose_of_code(const std::string& text) {
  std::string out = text;
  bool follows_comment = false;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = end_of_literal(text, i);
    if (end == i && text.compare(i, 4, "<!--") == 0) end = std::min(text.find("-->", i), text.size());
    if (end == i) {
      if (!is_blank(text[i])) {
        out[i] = kBreak;
        follows_comment = false;
      }
      ++i;
      continue;
    }
    if (text[i] == '\'') {
      fill(out, i, end, kBreak);
    } else if (text[i] == '"') {
      const bool raw = i > 0 && text[i - 1] == 'R';
      fill(out, i, raw ? text.find('(', i) + 1 : i + 1, ' ');
      fill(out, end - 1, end, ' ');
      if (!raw) unescape(out, i, end);
    } else {
      open_comment(out, i, text[i] == '<' ? 4 : 2, follows_comment);
      if (text[i] == '/' && text[i + 1] == '*') fill(out, end - 2, end, ' ');
    }
    follows_comment = text[i] == '/' || text[i] == '<';
    i = end;
  }
  return out;
}

std::string prose_of_script(const std::string& text) {
  std::string out = text;
  bool follows_comment = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    const bool begins_word = i == 0 || is_blank(text[i - 1]);
    std::size_t end = i + 1;
    if (c == '#' && begins_word) {
      end = std::min(text.find('\n', i), text.size());
      open_comment(out, i, 1, follows_comment);
      follows_comment = true;
    } else if (c == '"' || (c == '\'' && (begins_word || text[i - 1] == '='))) {
      while (end < text.size() && text[end] != c) end += text[end] == '\\' && c == '"' ? 2 : 1;
      end = std::min(end + 1, text.size());
      if (c == '\'') fill(out, i, end, kBreak);  // a program of another language
      out[i] = out[end - 1] = c == '"' ? ' ' : kBreak;
      unescape(out, i, end);
      follows_comment = false;
    } else if (!is_blank(c)) {
      out[i] = kBreak;
      follows_comment = false;
    }
    i = end;
  }
  return out;
}

// Fenced code, block quotes and comments of a page, line by line.
std::string without_blocks(const std::string& text) {
  std::string out = text;
  Fences fences;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    if (fences.hold(line) || line.substr(indent).starts_with('>')) fill(out, at, end, kBreak);
  }
  for (std::size_t at = 0; (at = out.find("<!--", at)) != std::string::npos;) {
    const std::size_t end = std::min(out.find("-->", at), out.size() - 3) + 3;
    fill(out, at, end, kBreak);
    at = end;
  }
  return out;
}

// Where what `open` begins at `at` ends with `close`; npos where code or an empty line stands between them.
std::size_t end_of_span(const std::string& text, std::size_t at, std::string_view close) {
  for (std::size_t i = at + 1; i < text.size() && text[i] != kBreak; ++i) {
    if (text.compare(i, close.size(), close) == 0) return i + close.size();
    if (text[i] == '\n' && std::isspace(static_cast<unsigned char>(text[std::min(i + 1, text.size() - 1)])) != 0 &&
        text.find_first_not_of(" \t", i + 1) == text.find('\n', i + 1))
      return std::string::npos;
  }
  return std::string::npos;
}

void blank_spans(std::string& text, std::string_view open, std::string_view close) {
  for (std::size_t at = 0; (at = text.find(open, at)) != std::string::npos; ++at) {
    const std::size_t end = end_of_span(text, at + open.size() - 1, close);
    if (end == std::string::npos) continue;
    fill(text, at, end, kQuoted);
    at = end - 1;
  }
}

}  // namespace

bool Fences::hold(std::string_view line) {
  const std::string_view begin = line.substr(std::min(line.find_first_not_of(' '), line.size()), 3);
  const bool is_fence = begin == "```" || begin == "~~~";
  const bool holds = is_fence || !fence_.empty();
  if (is_fence && fence_.empty())
    fence_ = begin;
  else if (is_fence && fence_ == begin)
    fence_.clear();
  return holds;
}

bool is_word_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t'; }

std::optional<Language> language_of(const std::string& path) {
  const auto ends_in = [&](auto... endings) { return (path.ends_with(endings) || ...); };
  if (ends_in(".h", ".cpp", ".cu", ".cuh", ".html")) return Language::kCode;
  if (ends_in(".md")) return Language::kMarkdown;
  if (ends_in(".sh", ".cmake", "CMakeLists.txt", ".toml", ".py", ".yml", ".yaml", ".sbatch", "Dockerfile"))
    return Language::kScript;
  return std::nullopt;
}

std::string prose_of(const std::string& text, Language language) {
  std::string out = language == Language::kMarkdown ? without_blocks(text)
                    : language == Language::kCode   ? prose_of_code(text)
                                                    : prose_of_script(text);
  blank_spans(out, "``", "``");
  blank_spans(out, "`", "`");
  blank_spans(out, "\"", "\"");
  blank_spans(out, "\u201c", "\u201d");
  if (language == Language::kMarkdown) blank_spans(out, "](", ")");
  return out;
}

std::size_t end_of_literal(const std::string& text, std::size_t at) {
  const auto after = [&](std::string_view closing, std::size_t from) {
    const std::size_t found = text.find(closing, from);
    return found == std::string::npos ? text.size() : found + closing.size();
  };
  const char c = text[at];
  if (text.compare(at, 2, "//") == 0) return std::min(text.find('\n', at), text.size());
  if (text.compare(at, 2, "/*") == 0) return after("*/", at + 2);
  if (c == '"' && at > 0 && text[at - 1] == 'R') {
    const std::size_t open = text.find('(', at);
    if (open != std::string::npos) {
      std::string closing = text.substr(at, open - at) + '"';
      closing[0] = ')';
      return after(closing, open);
    }
  }
  if (c != '"' && (c != '\'' || (at > 0 && is_word_char(text[at - 1])))) return at;  // 1'000 is a number
  std::size_t end = at + 1;
  while (end < text.size() && text[end] != c) end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size());
}

}  // namespace megalith::style

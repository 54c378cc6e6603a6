#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/fault.h"
#include "core/base/files/file.h"
#include "core/flags/values.h"

namespace megalith {

namespace {

constexpr std::size_t kMaxBytes = 1 << 20;
constexpr int kMaxDepth = 32;

constexpr const char* kForm = "write lines NAME = VALUE with names of flags, as in configs/quickstart.toml";

[[noreturn]] void refuse(const std::string& place, const std::string& expected, const std::string& got) {
  refuse_usage(place, {.expected = expected, .got = got, .remedy = kForm});
}

// Skips a string that starts at `at` and returns the index after it. An unclosed string ends with its line, an unclosed
// multi-line string with the text.
std::size_t after_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const bool is_long = text.substr(at, 3) == std::string(3, quote);
  const std::string_view close = text.substr(at, is_long ? 3 : 1);
  std::size_t i = at + close.size();
  while (i < text.size()) {
    if (quote == '"' && text[i] == '\\') {
      i += 2;
    } else if (text.substr(i, close.size()) == close) {
      i += close.size();
      for (int more = 0; is_long && more < 2 && i < text.size() && text[i] == quote; ++more) ++i;  // part of the text
      return i;
    } else if (!is_long && text[i] == '\n') {
      return i;
    } else {
      ++i;
    }
  }
  return text.size();
}

// True if a visible ASCII character follows each backslash of a double-quoted text.
bool has_plain_escapes(std::string_view text) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '\\') continue;
    ++i;
    if (text[i] <= ' ' || text[i] > '~') return false;  // char may be signed: non-ASCII is below ' '
  }
  return true;
}

// True if a name follows the '[' or '[[' at `at`, as toml++ assumes.
bool names_a_table(std::string_view text, std::size_t at) {
  const auto skip_blanks = [&] { at = std::min(text.find_first_not_of(" \t", at), text.size()); };
  ++at;
  skip_blanks();
  if (at < text.size() && text[at] == '[') {
    ++at;
    skip_blanks();
  }
  constexpr std::string_view kFirst =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-\"']";  // the parser rejects ]
  return at < text.size() && kFirst.find(text[at]) != std::string_view::npos;
}

// True for YYYY-MM-DD and the start of a time, which toml++ parses unchecked; no flag accepts a date.
bool begins_date_time(std::string_view text) {
  constexpr std::string_view kDate = "0000-00-00";
  if (text.size() <= kDate.size()) return false;
  for (std::size_t i = 0; i < kDate.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (digit != (kDate[i] == '0') || (!digit && text[i] != '-')) return false;
  }
  return std::string_view(" Tt").find(text[kDate.size()]) != std::string_view::npos;
}

// Rejects input that harms toml++ 3.3: nesting (brackets, dotted keys) so deep that its recursive destructors overflow
// the stack, and text that causes undefined behavior.
void check_harmless(std::string_view text, const std::string& file) {
  int line = 1;
  const auto refuse_line = [&](const std::string& expected, const std::string& got) {
    refuse(fmt::format("{}:{}", file, line), expected, got);
  };
  std::string open;  // open brackets and braces
  int dots = 0;
  bool line_begins = true;
  char before = '\n';  // last character other than a blank
  int equals = 0;      // since the last place where a name can begin
  for (std::size_t i = text.starts_with("\xef\xbb\xbf") ? 3 : 0; i < text.size();) {
    const char c = text[i];
    if (c == '[' && line_begins && open.empty() && !names_a_table(text, i))
      refuse_line("the name of a table after [", "none");
    line_begins = c == '\n' || (line_begins && (c == ' ' || c == '\t'));
    const char last = c == ' ' || c == '\t' ? before : std::exchange(before, c);
    // Elsewhere the parser sees no text, list or table, and searches them for the end of a number.
    if (std::string_view("\"'[{").find(c) != std::string_view::npos &&
        std::string_view("\n=,[{").find(last) == std::string_view::npos)
      refuse_line(fmt::format("{} only where a name or a value begins", c), "it inside of a name or value");
    if (c == '=' && ++equals > 1) refuse_line("one = per name", "a second =");
    if ((c == '\n' && open.empty()) || c == '{' || (c == ',' && open.ends_with('{'))) equals = 0;
    if (c == '"' || c == '\'') {
      const std::size_t next = after_string(text, i);
      // toml++ searches for blanks after a backslash, as it does outside of texts.
      if (c == '"' && !has_plain_escapes(text.substr(i, next - i)))
        refuse_line("a letter, digit or sign after each \\ of a text", "another character");
      line +=
          static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(i),
                                      text.begin() + static_cast<std::ptrdiff_t>(std::min(next, text.size())), '\n'));
      i = next;
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (begins_date_time(text.substr(i))) refuse_line("a boolean, number, text or list of them", "a date and time");
    if (static_cast<unsigned char>(c) >= 0x80)  // undefined behavior in toml++
      refuse_line("ASCII characters outside of texts and comments", "another character");
    if (c == '\n') ++line;
    if (c == '\n' || c == ',' || c == '=') dots = 0;
    if (c == '[' || c == '{') open += c;
    if ((c == ']' || c == '}') && !open.empty()) {
      if ((open.back() == '[') != (c == ']')) refuse_line(open.back() == '[' ? "]" : "}", std::string(1, c));
      open.pop_back();
    }
    if (c == '.') ++dots;
    if (static_cast<int>(open.size()) + dots > kMaxDepth) {
      refuse_line(fmt::format("at most {} levels of nesting", kMaxDepth), "more");
    }
    ++i;
  }
}

struct Scalar {
  RawType type;
  std::string text;
};

Scalar scalar_of(const toml::node& node, const RawValue& at) {
  if (const auto* boolean = node.as_boolean()) return {RawType::kBoolean, boolean->get() ? "true" : "false"};
  if (const auto* integer = node.as_integer()) return {RawType::kInteger, fmt::format("{}", integer->get())};
  if (const auto* text = node.as_string()) return {RawType::kText, text->get()};
  const auto* number = node.as_floating_point();
  const std::string got = number == nullptr ? "a date or time" : fmt::format("{}", number->get());
  if (number != nullptr && std::isfinite(number->get())) return {RawType::kReal, got};
  refuse_usage(prefix_of(at) + at.name,
               {.expected = number == nullptr ? "a boolean, number, text or list of them" : "a finite number",
                .got = got,
                .remedy = "see --help"});
}

void collect(const toml::table& table, const std::string& file, int depth, std::vector<RawValue>& out) {
  if (depth > kMaxDepth) refuse(file, fmt::format("at most {} levels of nesting", kMaxDepth), "more");
  for (const auto& [key, node] : table) {
    const toml::source_position position = key.source().begin;
    RawValue value{.name = std::string(key.str()), .type = RawType::kArray, .file = file};
    value.line = static_cast<std::uint32_t>(position.line);
    value.column = static_cast<std::uint32_t>(position.column);
    if (const toml::table* inner = node.as_table()) {  // a table only groups keys
      collect(*inner, file, depth + 1, out);
      continue;
    }
    if (const toml::array* items = node.as_array()) {
      for (const toml::node& item : *items) {
        if (item.is_table() || item.is_array())
          refuse_usage(prefix_of(value) + value.name,
                       {.expected = "a list of texts", .got = "a nested list", .remedy = "see --help"});
        value.items.push_back(scalar_of(item, value).text);
      }
    } else {
      auto [type, text] = scalar_of(node, value);
      value.type = type;
      value.items = {std::move(text)};
    }
    out.push_back(std::move(value));
  }
}

}  // namespace

std::vector<RawValue> read_config_text(std::string_view text, const std::string& file) {
  if (text.size() > kMaxBytes) refuse(file, "a configuration of at most 1 MiB", "more");
  check_harmless(text, file);
  std::vector<RawValue> values;
  try {
    collect(toml::parse(text, file), file, 1, values);
  } catch (const toml::parse_error& error) {
    const toml::source_position position = error.source().begin;
    refuse(fmt::format("{}:{}:{}: not TOML: {}", file, static_cast<unsigned>(position.line),
                       static_cast<unsigned>(position.column), error.description()),
           {}, {});
  }
  std::stable_sort(values.begin(), values.end(), [](const RawValue& a, const RawValue& b) {
    return a.line != b.line ? a.line < b.line : a.column < b.column;
  });
  return values;
}

std::vector<RawValue> read_config_file(const std::string& path) {
  const FaultScope scope("config");
  std::string text;
  try {
    text = read_file_or_pipe(path, kMaxBytes);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kFormat) refuse(path, "a configuration of at most 1 MiB", "more");
    throw Error(error.code(), fmt::format("--config: {}", error.what()));
  }
  return read_config_text(text, path);
}

}  // namespace megalith

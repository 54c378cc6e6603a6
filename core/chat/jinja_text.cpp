#include "core/chat/jinja_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/base/text/utf8.h"

namespace megalith::jinja {

namespace {

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end.ptr - buffer.data()));
  const std::size_t e = text.find('e');
  int exponent = 0;
  const char* digits = text.data() + e + 1;
  std::from_chars(*digits == '+' ? digits + 1 : digits, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  std::string out(buffer.data(), fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

// Characters that Python's repr escapes, outside ASCII: controls, formats, separators, private and unused ranges.
bool is_printable(std::uint32_t c) {
  struct Range {
    std::uint32_t first, last;
  };
  static constexpr Range kEscaped[] = {{0x7f, 0xa0},       {0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},
                                       {0x6dd, 0x6dd},     {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},
                                       {0x1680, 0x1680},   {0x180e, 0x180e},   {0x2000, 0x200f},   {0x2028, 0x202f},
                                       {0x205f, 0x206f},   {0x3000, 0x3000},   {0xd800, 0xf8ff},   {0xfdd0, 0xfdef},
                                       {0xfeff, 0xfeff},   {0xfff0, 0xfffb},   {0xfffe, 0xffff},   {0x110bd, 0x110bd},
                                       {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
                                       {0xe0000, 0xe00ff}, {0xe01f0, 0x10ffff}};
  return c >= 0x20 &&
         std::ranges::none_of(kEscaped, [c](const Range& range) { return c >= range.first && c <= range.last; });
}

std::string quote_text(std::string_view text) {
  const bool has_single = text.find('\'') != text.npos, has_double = text.find('"') != text.npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const auto [value, bytes] = decode_utf8(text, at);
    if (value == static_cast<unsigned char>(quote) || value == '\\') {
      out += '\\';
      out += static_cast<char>(value);
    } else if (value == '\n' || value == '\r' || value == '\t') {
      out += value == '\n' ? "\\n" : value == '\r' ? "\\r" : "\\t";
    } else if (is_printable(value)) {
      out += text.substr(at, bytes);
    } else if (value <= 0xff) {
      out += fmt::format("\\x{:02x}", value);
    } else {
      out += value <= 0xffff ? fmt::format("\\u{:04x}", value) : fmt::format("\\U{:08x}", value);
    }
    at += bytes;
  }
  return out += quote;
}

void append_joined(std::string& out, const std::vector<Value>& items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    out += repr(items[i]);
  }
}

std::string list_text(const List& list, const Value& value) {
  if (list.kind != ListKind::kList && list.kind != ListKind::kTuple) {
    throw Problem("the text of a " + value.type_name(), "append '| list'");
  }
  const bool is_tuple = list.kind == ListKind::kTuple;
  std::string out = is_tuple ? "(" : "[";
  append_joined(out, list.items);
  if (is_tuple && list.items.size() == 1) out += ',';
  return out += is_tuple ? ")" : "]";
}

std::string dict_text(const Dict& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.members) {
    if (out.size() > 1) out += ", ";
    out += repr(key_value(key)) + ": " + repr(value);
  }
  return out += "}";
}

// json.dumps.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {
    separator_ = style.item_separator.value_or(style.indent ? "," : ", ");
  }

  void write(const Value& value) {
    switch (value.kind()) {
      case Value::Kind::kNone: out += "null"; return;
      case Value::Kind::kBool: out += value.as_bool() ? "true" : "false"; return;
      case Value::Kind::kInt: out += std::to_string(value.as_integer()); return;
      case Value::Kind::kFloat: out += number_text(value.as_real()); return;
      case Value::Kind::kText: write_text(value.as_text()); return;
      case Value::Kind::kList:
        if (value.as_list().kind != ListKind::kList && value.as_list().kind != ListKind::kTuple) break;
        write_list(value.as_list());
        return;
      case Value::Kind::kDict: write_dict(value.as_dict()); return;
      case Value::Kind::kUndefined: throw Problem("JSON of an undefined value: " + value.undefined_name());
      default: break;
    }
    throw Problem("JSON of a " + value.type_name(), "append '| list' if it is a filter's result");
  }

  std::string out;

 private:
  static std::string number_text(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return float_text(value);
  }

  void write_escape(std::uint32_t value) {
    if (value > 0xffff) {
      const std::uint32_t rest = value - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
    } else {
      out += fmt::format("\\u{:04x}", value);
    }
  }

  void write_text(std::string_view text) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    out += '"';
    for (std::size_t at = 0; at < text.size();) {
      const auto [value, bytes] = decode_utf8(text, at);
      const std::size_t special = value < 0x80 ? kEscaped.find(static_cast<char>(value)) : kEscaped.npos;
      if (special != kEscaped.npos) {
        out += '\\';
        out += kLetters[special];
      } else if (value < 0x20 || (style_.ascii && value > 0x7f)) {
        write_escape(value);
      } else {
        out += text.substr(at, bytes);
      }
      at += bytes;
    }
    out += '"';
  }

  void begin_line(int level) {
    if (!style_.indent) return;
    out += '\n';
    for (int i = 0; i < level; ++i) out += *style_.indent;
  }

  // Writes the items between two brackets.
  template <class Items, class Write>
  void write_items(char open, char close, const Items& items, Write&& write_item) {
    out += open;
    ++level_;
    bool is_first = true;
    for (const auto& item : items) {
      if (!std::exchange(is_first, false)) out += separator_;
      begin_line(level_);
      write_item(item);
    }
    --level_;
    if (!items.empty()) begin_line(level_);
    out += close;
  }

  void write_list(const List& list) {
    write_items('[', ']', list.items, [&](const Value& item) { write(item); });
  }

  void write_dict(const Dict& dict) {
    auto members = dict.members;
    if (style_.sorted) {
      std::ranges::sort(members,
                        [](const auto& a, const auto& b) { return less(key_value(a.first), key_value(b.first)); });
    }
    write_items('{', '}', members, [&](const auto& member) {
      write_text(str(key_value(member.first)));
      out += style_.key_separator;
      write(member.second);
    });
  }

  const JsonStyle& style_;
  std::string separator_;
  int level_ = 0;
};

}  // namespace

std::string str(const Value& value) {
  if (value.is_undefined()) return "";
  return value.is_text() ? value.as_text() : repr(value);
}

std::string repr(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kUndefined: return "Undefined";
    case Value::Kind::kNone: return "None";
    case Value::Kind::kBool: return value.as_bool() ? "True" : "False";
    case Value::Kind::kInt: return std::to_string(value.as_integer());
    case Value::Kind::kFloat: return float_text(value.as_real());
    case Value::Kind::kText: return quote_text(value.as_text());
    case Value::Kind::kList: return list_text(value.as_list(), value);
    case Value::Kind::kDict: return dict_text(value.as_dict());
    default: throw Problem("the text of a " + value.type_name(), "print its attributes or call it");
  }
}

std::string to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  return std::move(writer.out);
}

}  // namespace megalith::jinja

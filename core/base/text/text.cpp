#include "core/base/text/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/base/text/utf8.h"

namespace megalith {

std::string escaped(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte == 0x7f) {
          out += fmt::format("\\u{:04x}", byte);
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string escaped_short(std::string_view text) {
  constexpr std::size_t kMost = 80;
  if (!is_utf8(text)) return "bytes that are not UTF-8";
  if (text.size() <= kMost) return escaped(text);
  std::size_t end = kMost;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not within a character
  return escaped(text.substr(0, end)) + "...";
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint code = decode_utf8(text, at);
    if (code.value >= kCodePoints) return false;
    at += code.bytes;
  }
  return true;
}

std::string alternatives(const std::vector<std::string_view>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out += names[i];
  }
  return out;
}

std::string in_columns(std::string line, std::string_view text, std::size_t indent, std::size_t width) {
  std::string out;
  if (line.size() + 2 > indent) {
    out = line + "\n";
    line.clear();
  }
  line.resize(indent, ' ');
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (line.size() + word.size() > width) {
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
      line.assign(indent, ' ');
    }
    line.append(word).append(" ");
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return out + line + "\n";
}

namespace {

bool is_harmless(std::uint32_t point) {
  const auto within = [&](std::uint32_t first, std::uint32_t last) { return point >= first && point <= last; };
  const bool controls = point < 0x20 || within(0x7f, 0x9f);
  const bool ends_line = within(0x2028, 0x2029);
  const bool turns = point == 0x61c || within(0x200e, 0x200f) || within(0x202a, 0x202e) || within(0x2066, 0x2069);
  return point < kCodePoints && !controls && !ends_line && !turns;
}

// Calls put(bytes) with the printable form of each character.
template <class Put>
void show_each(std::string_view text, Put&& put) {
  constexpr const char* kDigits = "0123456789abcdef";
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint code = decode_utf8(text, at);
    const std::string_view bytes = text.substr(at, code.bytes);
    at += code.bytes;
    if (is_harmless(code.value)) {
      put(bytes);
    } else if (code.value == '\n') {
      put("\\n");
    } else {
      for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        put(std::string_view(std::array{'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]}.data(), 4));
      }
    }
  }
}

}  // namespace

std::string in_one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  show_each(text, [&](std::string_view shown) { line += shown; });
  return line;
}

std::size_t put_in_one_line(std::string_view text, std::span<char> out) {
  std::size_t used = 0;
  bool full = false;
  show_each(text, [&](std::string_view shown) {
    full = full || shown.size() > out.size() - used;
    if (full) return;
    std::copy(shown.begin(), shown.end(), out.begin() + static_cast<std::ptrdiff_t>(used));
    used += shown.size();
  });
  return used;
}

}  // namespace megalith

#include "core/base/text/one_line.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/base/text/utf8.h"

namespace megalith {
namespace {

bool is_harmless(std::uint32_t point) {
  const auto within = [&](std::uint32_t first, std::uint32_t last) { return point >= first && point <= last; };
  const bool controls = point < 0x20 || within(0x7f, 0x9f);
  const bool ends_line = within(0x2028, 0x2029);
  const bool turns = point == 0x61c || within(0x200e, 0x200f) || within(0x202a, 0x202e) || within(0x2066, 0x2069);
  return point < kCodePoints && !controls && !ends_line && !turns;
}

// Calls put(bytes) with what is shown of each character.
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

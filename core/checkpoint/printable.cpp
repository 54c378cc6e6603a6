#include "core/checkpoint/printable.h"

#include <fmt/format.h>

namespace megalith {

std::string printable(std::string_view name) {
  constexpr std::size_t kLongest = 100;
  std::string text = "'";
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text + (name.size() > kLongest ? "...'" : "'");
}

}  // namespace megalith

#include "core/base/text/utf8.h"

namespace megalith {

namespace {

constexpr std::uint32_t byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
}

constexpr bool is_continuation(std::uint32_t byte) { return (byte & 0xc0) == 0x80; }

// Returns the length of the sequence that `lead` begins; 1 for bytes that begin none.
constexpr std::uint32_t sequence_bytes(std::uint32_t lead) {
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 1;
}

}  // namespace

CodePoint decode_utf8(std::string_view text, std::size_t at) {
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // by length; a smaller value is overlong
  const std::uint32_t lead = byte_at(text, at), bytes = sequence_bytes(lead);
  if (lead < 0x80) return {lead, 1};
  const CodePoint none{kCodePoints + lead, 1};
  if (bytes == 1) return none;
  std::uint32_t value = lead & (0x7f >> bytes);
  for (std::uint32_t i = 1; i < bytes; ++i) {
    const std::uint32_t byte = byte_at(text, at + i);
    if (!is_continuation(byte)) return none;
    value = value << 6 | (byte & 0x3f);
  }
  const bool is_surrogate = value >= 0xd800 && value < 0xe000;
  return value < kLeast[bytes] || value >= kCodePoints || is_surrogate ? none : CodePoint{value, bytes};
}

void append_utf8(std::string& text, std::uint32_t value) {
  if (value >= kCodePoints || value < 0x80) {
    text += static_cast<char>(value < 0x80 ? value : value - kCodePoints);
    return;
  }
  constexpr std::uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};  // by number of continuation bytes
  const std::uint32_t more = value < 0x800 ? 1 : value < 0x10000 ? 2 : 3;
  text += static_cast<char>(kLead[more] | value >> 6 * more);
  for (std::uint32_t i = more; i-- > 0;) text += static_cast<char>(0x80 | (value >> 6 * i & 0x3f));
}

std::string Utf8Stream::push(std::string_view piece) {
  std::string text;
  text.swap(kept_);
  text.append(piece);
  for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const std::uint32_t byte = byte_at(text, text.size() - back);
    if (is_continuation(byte)) continue;
    if (sequence_bytes(byte) > back) {
      kept_.assign(text, text.size() - back, back);
      text.erase(text.size() - back);
    }
    break;
  }
  return text;
}

std::string Utf8Stream::flush() {
  std::string text;
  text.swap(kept_);
  return text;
}

}  // namespace megalith

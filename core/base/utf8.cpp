#include "core/base/utf8.h"

namespace megalith {

namespace {

constexpr std::uint32_t byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
}

constexpr bool is_continuation(std::uint32_t byte) { return (byte & 0xc0) == 0x80; }

// Bytes of the sequence that `lead` begins; 1 for those that begin none.
constexpr std::uint32_t sequence_bytes(std::uint32_t lead) {
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xf0 && lead < 0xf5) return 4;
  return 1;
}

}  // namespace

CodePoint decode_utf8(std::string_view text, std::size_t at) {
  const std::uint32_t lead = byte_at(text, at);
  if (lead < 0x80) return {lead, 1};
  const CodePoint none{kCodePoints + lead, 1};
  const std::uint32_t second = byte_at(text, at + 1);
  const std::uint32_t bytes = sequence_bytes(lead);
  if (bytes == 1 || !is_continuation(second)) return none;
  if (bytes == 2) return {(lead & 0x1f) << 6 | (second & 0x3f), 2};
  const std::uint32_t third = byte_at(text, at + 2);
  if (!is_continuation(third)) return none;
  if (bytes == 3) {
    const std::uint32_t value = (lead & 0x0f) << 12 | (second & 0x3f) << 6 | (third & 0x3f);
    return value < 0x800 || (value >= 0xd800 && value < 0xe000) ? none : CodePoint{value, 3};
  }
  const std::uint32_t fourth = byte_at(text, at + 3);
  if (!is_continuation(fourth)) return none;
  const std::uint32_t value = (lead & 0x07) << 18 | (second & 0x3f) << 12 | (third & 0x3f) << 6 | (fourth & 0x3f);
  return value < 0x10000 || value >= kCodePoints ? none : CodePoint{value, 4};
}

void append_utf8(std::string& text, std::uint32_t value) {
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (value >= kCodePoints) {
    add(value - kCodePoints);
  } else if (value < 0x80) {
    add(value);
  } else if (value < 0x800) {
    add(0xc0 | value >> 6);
    add(0x80 | (value & 0x3f));
  } else if (value < 0x10000) {
    add(0xe0 | value >> 12);
    add(0x80 | (value >> 6 & 0x3f));
    add(0x80 | (value & 0x3f));
  } else {
    add(0xf0 | value >> 18);
    add(0x80 | (value >> 12 & 0x3f));
    add(0x80 | (value >> 6 & 0x3f));
    add(0x80 | (value & 0x3f));
  }
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

// Protocol buffers wire format, written without a library, and the checksums of record files.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace megalith {

template <class T>
void append_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

// Wire types; a key is field number << 3 | wire type.
enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

inline void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out.push_back(static_cast<char>(value));
}

inline void append_key(std::string& out, unsigned field, WireType type) { append_varint(out, field << 3 | type); }

inline void append_number(std::string& out, unsigned field, std::int64_t value) {
  append_key(out, field, kVarint);
  append_varint(out, static_cast<std::uint64_t>(value));
}

// Appends a string or a nested message.
inline void append_bytes(std::string& out, unsigned field, std::string_view bytes) {
  append_key(out, field, kLengthDelimited);
  append_varint(out, bytes.size());
  out += bytes;
}

inline constexpr std::uint32_t kCrc32 = 0xedb88320;   // of zlib, reflected
inline constexpr std::uint32_t kCrc32c = 0x82f63b78;  // Castagnoli, reflected

template <std::uint32_t polynomial>
std::uint32_t crc32_of(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0);
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

}  // namespace megalith

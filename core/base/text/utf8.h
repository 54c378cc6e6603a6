// UTF-8: decoding and encoding of code points, and streams that never cut a character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace megalith {

constexpr std::uint32_t kCodePoints = 0x110000;

// Code point and its length in bytes. A byte that begins no well-formed sequence is {kCodePoints + byte, 1}.
// RFC 3629 rejects surrogates and overlong forms. Any bytes can thus be decoded and encoded without loss.
struct CodePoint {
  std::uint32_t value;
  std::uint32_t bytes;
};

// Decodes the code point at text[at]; at < text.size().
CodePoint decode_utf8(std::string_view text, std::size_t at);

// Appends the bytes that decode_utf8 maps to `value`.
void append_utf8(std::string& text, std::uint32_t value);

// Stream of text in pieces that holds back the bytes of an incomplete character.
class Utf8Stream {
 public:
  std::string push(std::string_view piece);
  std::string flush();  // the held bytes, complete or not

 private:
  std::string kept_;
};

}  // namespace megalith

// UTF-8: code points out of bytes and back, and streams that never cut a character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace megalith {

constexpr std::uint32_t kCodePoints = 0x110000;

// One code point and the bytes it takes. A byte that begins no well-formed sequence (RFC 3629: no surrogates, no
// overlong forms) is {kCodePoints + byte, 1}, so that any bytes can be taken apart and put together again.
struct CodePoint {
  std::uint32_t value;
  std::uint32_t bytes;
};

// The one at text[at]; at < text.size().
CodePoint decode_utf8(std::string_view text, std::size_t at);

// Appends the bytes that decode_utf8 gives `value` for.
void append_utf8(std::string& text, std::uint32_t value);

// Passes on text that comes in pieces, but keeps back the bytes of a character that is not complete yet.
class Utf8Stream {
 public:
  std::string push(std::string_view piece);
  std::string flush();  // what is kept back, complete or not

 private:
  std::string kept_;
};

}  // namespace megalith

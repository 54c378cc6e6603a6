#include "core/chat/jinja_plain_json.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text/utf8.h"
#include "core/checkpoint/strict_json.h"

namespace megalith::jinja {

namespace {

// Bytes that a string may contain unescaped, without those of multi-byte characters.
constexpr std::array<bool, 256> plain_bytes() {
  std::array<bool, 256> plain{};
  for (std::size_t byte = 0x20; byte < 0x80; ++byte) plain[byte] = byte != '"' && byte != '\\';
  return plain;
}
constexpr std::array<bool, 256> kPlain = plain_bytes();

// Each function returns false where the text is no plain JSON.
class PlainReader {
 public:
  explicit PlainReader(std::string_view text) : text_(text) {}

  std::optional<Value> read() {
    Value value;
    skip_space();
    if (!read_value(value, 0)) return std::nullopt;
    skip_space();
    if (at_ != text_.size()) return std::nullopt;
    return value;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  void skip_space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\t' || peek() == '\r') ++at_;
  }

  bool read_value(Value& value, std::size_t depth) {
    if (values_++ == kMaxJsonValues) return false;
    switch (peek()) {
      case '"': {
        std::string text;
        if (!read_string(text)) return false;
        value = Value::text(std::move(text));
        return true;
      }
      case '{': return depth < kMaxJsonDepth && read_object(value, depth);
      case '[': return depth < kMaxJsonDepth && read_array(value, depth);
      case 't': value = Value::boolean(true); return take("true");
      case 'f': value = Value::boolean(false); return take("false");
      case 'n': value = Value::none(); return take("null");
      default: return read_integer(value);
    }
  }

  bool read_object(Value& value, std::size_t depth) {
    Dict dict;
    ++at_;
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        std::string key;
        Value member;
        if (!read_string(key) || dict.find(key) != nullptr) return false;
        skip_space();
        if (!take(':')) return false;
        skip_space();
        if (!read_value(member, depth + 1)) return false;
        dict.set(std::move(key), std::move(member));
        skip_space();
      } while (take(','));
      if (!take('}')) return false;
    }
    value = Value::dict(std::move(dict));
    return true;
  }

  bool read_array(Value& value, std::size_t depth) {
    std::vector<Value> items;
    ++at_;
    skip_space();
    if (!take(']')) {
      do {
        skip_space();
        if (!read_value(items.emplace_back(), depth + 1)) return false;
        skip_space();
      } while (take(','));
      if (!take(']')) return false;
    }
    value = Value::list(std::move(items));
    return true;
  }

  bool read_integer(Value& value) {
    constexpr std::size_t kMaxDigits = 18;  // which 64 bits hold
    const bool is_negative = take('-');
    const std::size_t begin = at_;
    std::int64_t number = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      if (at_ - begin == kMaxDigits) return false;
      number = 10 * number + (peek() - '0');
    }
    const bool is_zero = at_ - begin == 1 && number == 0;
    if (at_ == begin || (text_[begin] == '0' && (!is_zero || is_negative))) return false;
    if (peek() == '.' || peek() == 'e' || peek() == 'E') return false;
    value = Value::integer(is_negative ? -number : number);
    return true;
  }

  bool read_string(std::string& out) {
    if (!take('"')) return false;
    for (;;) {
      const std::size_t begin = at_;
      while (at_ < text_.size() && kPlain[static_cast<unsigned char>(text_[at_])]) ++at_;
      while (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) >= 0x80) {
        const CodePoint code = decode_utf8(text_, at_);
        if (code.value >= kCodePoints) return false;
        at_ += code.bytes;
      }
      out.append(text_, begin, at_ - begin);
      if (take('"')) return true;
      if (take('\\')) {
        if (!read_escape(out)) return false;
      } else if (!kPlain[static_cast<unsigned char>(peek())]) {
        return false;
      }
    }
  }

  bool read_escape(std::string& out) {
    constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (take('u')) return read_code(out);
    const std::size_t known = at_ < text_.size() ? kEscapes.find(text_[at_]) : std::string_view::npos;
    if (known == std::string_view::npos) return false;
    out += kMeanings[known];
    ++at_;
    return true;
  }

  // Reads the digits of \uXXXX, and a second one if the two are a pair of surrogates.
  bool read_code(std::string& out) {
    std::uint32_t value = 0;
    if (!read_digits(value)) return false;
    if (value >= 0xd800 && value < 0xe000) {
      std::uint32_t low = 0;
      if (value >= 0xdc00 || !take("\\u") || !read_digits(low) || low < 0xdc00 || low >= 0xe000) return false;
      value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(out, value);
    return true;
  }

  bool read_digits(std::uint32_t& value) {
    for (std::size_t i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const bool is_digit = c >= '0' && c <= '9', is_lower = c >= 'a' && c <= 'f', is_upper = c >= 'A' && c <= 'F';
      if (!is_digit && !is_lower && !is_upper) return false;
      value = 16 * value + static_cast<std::uint32_t>(is_digit ? c - '0' : is_lower ? c - 'a' + 10 : c - 'A' + 10);
    }
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t values_ = 0;
};

}  // namespace

std::optional<Value> parse_plain_json(std::string_view text) {
  try {
    return PlainReader(text).read();
  } catch (const Problem&) {  // a value above the limits
    return std::nullopt;
  }
}

}  // namespace megalith::jinja

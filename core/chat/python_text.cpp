#include "core/chat/python_text.h"

#include <algorithm>

#include "core/base/text/utf8.h"
#include "core/chat/jinja_value.h"

namespace megalith::jinja {

namespace {

bool is_line_end(std::uint32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

// Returns the last code point of a non-empty text.
CodePoint last_of(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return decode_utf8(text, at);
}

bool is_stripped(std::uint32_t c, std::optional<std::string_view> characters) {
  if (!characters) return is_space(c);
  for (std::size_t at = 0; at < characters->size();) {
    const CodePoint point = decode_utf8(*characters, at);
    if (point.value == c) return true;
    at += point.bytes;
  }
  return false;
}

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
char upper_of(char c) { return is_lower(c) ? static_cast<char>(c - 'a' + 'A') : c; }
char lower_of(char c) { return is_upper(c) ? static_cast<char>(c - 'A' + 'a') : c; }

void require_ascii(std::string_view text) {
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
    throw Problem("a change of case of text outside ASCII", "write the text in the wanted case");
  }
}

template <class Change>
std::string changed(std::string_view text, Change&& change) {
  require_ascii(text);
  std::string out(text);
  for (char& c : out) c = change(c);
  return out;
}

}  // namespace

bool is_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = decode_utf8(text, at).bytes;
    characters.push_back(text.substr(at, bytes));
    at += bytes;
  }
  return characters;
}

std::size_t byte_of(std::string_view text, std::size_t character) {
  std::size_t at = 0;
  for (; character > 0 && at < text.size(); --character) at += decode_utf8(text, at).bytes;
  return at;
}

std::string_view strip_left(std::string_view text, std::optional<std::string_view> characters) {
  while (!text.empty()) {
    const CodePoint point = decode_utf8(text, 0);
    if (!is_stripped(point.value, characters)) break;
    text.remove_prefix(point.bytes);
  }
  return text;
}

std::string_view strip_right(std::string_view text, std::optional<std::string_view> characters) {
  while (!text.empty()) {
    const CodePoint point = last_of(text);
    if (!is_stripped(point.value, characters)) break;
    text.remove_suffix(point.bytes);
  }
  return text;
}

std::string_view strip(std::string_view text, std::optional<std::string_view> characters) {
  return strip_right(strip_left(text, characters), characters);
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  if (!separator) text = strip_left(text);
  while (max_splits < 0 || std::cmp_less(parts.size(), max_splits)) {
    std::size_t end = 0, next = 0;
    if (separator) {
      end = text.find(*separator);
      if (end == std::string_view::npos) break;
      next = end + separator->size();
    } else {
      while (end < text.size() && !is_space(decode_utf8(text, end).value)) end += decode_utf8(text, end).bytes;
      if (end == text.size()) break;
      next = end;
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(next);
    if (!separator) text = strip_left(text);
  }
  if (!separator && text.empty()) return parts;
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> split_right(std::string_view text, std::optional<std::string_view> separator,
                                          std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  if (!separator) text = strip_right(text);
  while (max_splits < 0 || std::cmp_less(parts.size(), max_splits)) {
    std::size_t begin = 0, end = 0;  // of the separator
    if (separator) {
      begin = text.rfind(*separator);
      if (begin == std::string_view::npos) break;
      end = begin + separator->size();
    } else {
      end = text.size();
      while (end > 0) {
        const CodePoint point = last_of(text.substr(0, end));
        if (is_space(point.value)) break;
        end -= point.bytes;
      }
      if (end == 0) break;
      begin = end;
    }
    parts.push_back(text.substr(end));
    text = text.substr(0, begin);
    if (!separator) text = strip_right(text);
  }
  if (separator || !text.empty()) parts.push_back(text);
  std::ranges::reverse(parts);
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    const std::size_t end = at;
    at += point.bytes;
    if (!is_line_end(point.value)) continue;
    if (point.value == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t max_count) {
  std::string out;
  std::size_t at = 0;
  const auto may_replace = [&] { return max_count < 0 || max_count-- > 0; };
  if (from.empty()) {  // around each character
    for (const std::string_view character : characters_of(text)) {
      if (may_replace()) out += to;
      out += character;
    }
    if (may_replace()) out += to;
    return out;
  }
  for (std::size_t found = text.find(from); found != std::string_view::npos && may_replace();
       found = text.find(from, at)) {
    out += text.substr(at, found - at);
    out += to;
    at = found + from.size();
  }
  return out += text.substr(at);
}

std::string upper(std::string_view text) { return changed(text, upper_of); }
std::string lower(std::string_view text) { return changed(text, lower_of); }

std::string title(std::string_view text) {
  bool in_word = false;
  return changed(text, [&](char c) {
    const char out = in_word ? lower_of(c) : upper_of(c);
    in_word = is_upper(c) || is_lower(c);
    return out;
  });
}

std::string filter_title(std::string_view text) {
  bool in_word = false;
  return changed(text, [&](char c) {
    const bool is_border = is_space(static_cast<unsigned char>(c)) || std::string_view("-({[<").find(c) != text.npos;
    const char out = in_word && !is_border ? lower_of(c) : upper_of(c);
    in_word = !is_border;
    return out;
  });
}

std::string capitalize(std::string_view text) {
  std::string out = lower(text);
  if (!out.empty()) out[0] = upper_of(out[0]);
  return out;
}

std::vector<std::size_t> slice_positions(std::size_t length, std::optional<std::int64_t> start,
                                         std::optional<std::int64_t> stop, std::int64_t step) {
  if (step == 0) throw Problem("a slice with step 0");
  const auto size = static_cast<std::int64_t>(length);
  const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto place = [&](std::optional<std::int64_t> at, std::int64_t otherwise) {
    if (!at) return otherwise;
    if (*at < 0) return *at < -size ? low : std::max(*at + size, low);
    return std::min(*at, high);
  };
  const std::int64_t first = place(start, step > 0 ? 0 : size - 1), last = place(stop, step > 0 ? size : -1);
  std::vector<std::size_t> positions;
  // A step beyond the length selects one item.
  const std::int64_t stride = std::clamp<std::int64_t>(step, -size - 1, size + 1);
  for (std::int64_t at = first; step > 0 ? at < last : at > last; at += stride) {
    positions.push_back(static_cast<std::size_t>(at));
  }
  return positions;
}

}  // namespace megalith::jinja

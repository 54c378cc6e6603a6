#include "core/tokenizer/nfc.h"

#include <algorithm>

#include "core/base/text/utf8.h"
#include "core/tokenizer/unicode_tables.h"

namespace megalith {

namespace {

// Hangul syllables are composed by arithmetic: The Unicode Standard, section 3.12.
constexpr std::uint32_t kSyllables = 0xac00;
constexpr std::uint32_t kLeads = 0x1100;
constexpr std::uint32_t kVowels = 0x1161;
constexpr std::uint32_t kTails = 0x11a7;  // one below the first
constexpr std::uint32_t kLeadCount = 19;
constexpr std::uint32_t kVowelCount = 21;
constexpr std::uint32_t kTailCount = 28;
constexpr std::uint32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

constexpr std::uint64_t pair_key(std::uint32_t first, std::uint32_t second) {
  return std::uint64_t{first} << 32 | second;
}

}  // namespace

NfcNormalizer::NfcNormalizer() : stable_(kCodePoints + 256, true) {
  std::uint32_t code = 0;
  for (const std::uint32_t run : unpacked(kCombiningRuns)) {
    code += run >> 14;
    for (const std::uint32_t end = code + (run >> 8 & 0x3f); code < end; ++code) {
      classes_[code] = static_cast<int>(run & 0xff);
      stable_[code] = false;
    }
  }
  const std::vector<std::uint32_t> decompositions = unpacked(kDecompositions), seconds = unpacked(kSecondCodePoints);
  auto packed = decompositions.begin();
  code = 0;
  for (const std::uint32_t run : unpacked(kDecomposedRuns)) {
    code += run >> 12;
    for (const std::uint32_t end = code + (run & 0xfff); code < end; ++code, ++packed) {
      const std::uint32_t second = seconds[*packed & 0x7f];
      pairs_[code] = pair_key(*packed >> 8, second);
      const bool composes = (*packed & 0x80) == 0;
      stable_[composes ? second : code] = false;
      if (composes) composed_[pairs_[code]] = code;
    }
  }
  for (std::uint32_t i = 0; i < kVowelCount; ++i) stable_[kVowels + i] = false;
  for (std::uint32_t i = 1; i < kTailCount; ++i) stable_[kTails + i] = false;
}

void NfcNormalizer::append(std::string& out, std::string_view text) const {
  if (keeps(text)) {
    out += text;
    return;
  }
  std::size_t begin = 0;  // start of the text that is not yet in `out`
  std::size_t last = 0;   // the last stable character
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint code = decode_utf8(text, at);
    if (code.value < 0x300 || stable_[code.value]) {
      last = at;
      at += code.bytes;
      continue;
    }
    std::size_t end = at;
    while (end < text.size()) {
      const CodePoint next = decode_utf8(text, end);
      if (stable_[next.value]) break;
      end += next.bytes;
    }
    out += text.substr(begin, last - begin);
    append_span(out, text.substr(last, end - last));
    begin = last = at = end;
  }
  out += text.substr(begin);
}

void NfcNormalizer::append_span(std::string& out, std::string_view span) const {
  std::vector<Char> chars;
  for (std::size_t at = 0; at < span.size();) {
    const CodePoint code = decode_utf8(span, at);
    decompose(code.value, chars);
    at += code.bytes;
  }
  const auto is_starter = [](const Char& c) { return c.combining_class == 0; };
  for (auto at = chars.begin(); at != chars.end();) {
    const auto begin = std::find_if_not(at, chars.end(), is_starter);
    at = std::find_if(begin, chars.end(), is_starter);
    std::stable_sort(begin, at, [](const Char& a, const Char& b) { return a.combining_class < b.combining_class; });
  }
  std::size_t kept = 0;
  std::size_t starter = chars.size();  // none
  int between = -1;                    // class of the last character kept after the starter; -1: none
  for (const Char c : chars) {
    if (starter < chars.size() && between < c.combining_class) {
      if (const std::uint32_t value = composed(chars[starter].value, c.value); value != 0) {
        chars[starter].value = value;
        continue;
      }
    }
    if (c.combining_class == 0) starter = kept;
    between = c.combining_class == 0 ? -1 : c.combining_class;
    chars[kept++] = c;
  }
  for (std::size_t i = 0; i < kept; ++i) append_utf8(out, chars[i].value);
}

void NfcNormalizer::decompose(std::uint32_t value, std::vector<Char>& chars) const {
  if (value >= kSyllables && value < kSyllables + kSyllableCount) {
    const std::uint32_t index = value - kSyllables;
    chars.push_back({kLeads + index / (kVowelCount * kTailCount), 0});
    chars.push_back({kVowels + index / kTailCount % kVowelCount, 0});
    if (index % kTailCount != 0) chars.push_back({kTails + index % kTailCount, 0});
    return;
  }
  if (const auto found = pairs_.find(value); found != pairs_.end()) {
    decompose(static_cast<std::uint32_t>(found->second >> 32), chars);
    const auto second = static_cast<std::uint32_t>(found->second);
    if (second != 0) decompose(second, chars);
    return;
  }
  const auto combining = classes_.find(value);
  chars.push_back({value, combining == classes_.end() ? 0 : combining->second});
}

std::uint32_t NfcNormalizer::composed(std::uint32_t first, std::uint32_t second) const {
  const std::uint32_t lead = first - kLeads;
  const std::uint32_t vowel = second - kVowels;
  if (lead < kLeadCount && vowel < kVowelCount) return kSyllables + (lead * kVowelCount + vowel) * kTailCount;
  const std::uint32_t syllable = first - kSyllables;
  const std::uint32_t tail = second - kTails;
  if (syllable < kSyllableCount && syllable % kTailCount == 0 && tail > 0 && tail < kTailCount) return first + tail;
  const auto found = composed_.find(pair_key(first, second));
  return found == composed_.end() ? 0 : found->second;
}

}  // namespace megalith

// Digest of data that two ranks of one build compare.
#pragma once

#include <cstdint>
#include <string_view>

namespace megalith {

// FNV-1a (Fowler, Noll & Vo), one value or character a step.
inline constexpr std::uint64_t kEmptyDigest = 14695981039346656037u;
constexpr void fold(std::uint64_t& digest, std::uint64_t value) { digest = (digest ^ value) * 1099511628211u; }
constexpr void fold(std::uint64_t& digest, std::string_view text) {
  for (const char c : text) fold(digest, static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
  fold(digest, text.size());
}

}  // namespace megalith

// Temporary file of encoded conversations, so that memory holds only their lengths while their packs are chosen.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/files/file.h"

namespace megalith {

// Token id of 0 to 2^31 - 1 and its mark in one word.
constexpr std::uint32_t marked_token(std::int32_t id, bool trained) {
  return static_cast<std::uint32_t>(id) | (trained ? std::uint32_t{1} << 31 : 0);
}
constexpr std::int32_t token_in(std::uint32_t word) { return static_cast<std::int32_t>(word & 0x7fffffffu); }
constexpr bool is_trained(std::uint32_t word) { return word >> 31 != 0; }

class ConversationSpool {
 public:
  // Creates the file in the folder of `prefix` and removes its name at once, so it ends with the process.
  explicit ConversationSpool(const std::string& prefix);

  // Adds conversations of `lengths` words each, at least 1; `words` has all of them.
  void add(std::span<const std::uint32_t> words, std::span<const std::int32_t> lengths);

  std::span<const std::int32_t> lengths() const { return lengths_; }
  // Reads the first `words.size()` words of a conversation.
  void read(std::int64_t conversation, std::span<std::uint32_t> words) const;

 private:
  File out_;
  File in_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> begin_;  // of each conversation, in words
  std::int64_t words_ = 0;
};

}  // namespace megalith

// Cache of the ids of recent short words, so that common words are merged once.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

namespace megalith {

class WordCache {
 public:
  WordCache() = default;
  WordCache(const WordCache&) {}  // a copy starts empty
  WordCache& operator=(const WordCache&) { return *this; }
  WordCache(WordCache&&) = default;
  WordCache& operator=(WordCache&&) = default;

  static constexpr std::size_t kMaxBytes = 23;
  static constexpr std::size_t kMaxIds = 9;
  using Key = std::array<std::uint64_t, 3>;  // bytes of the word, zeros, its length
  struct alignas(64) Entry {                 // one line of the processor's cache
    Key key;
    std::uint32_t count;
    std::array<std::int32_t, kMaxIds> ids;
    bool has(const Key& other) const { return ((key[0] ^ other[0]) | (key[1] ^ other[1]) | (key[2] ^ other[2])) == 0; }
  };

  // Returns the key of text.substr(begin, bytes), of at most kMaxBytes.
  static Key key_of(std::string_view text, std::size_t begin, std::size_t bytes) {
    char all[sizeof(Key)] = {};
    if (text.size() - begin < sizeof(Key)) {
      std::memcpy(all, text.data() + begin, bytes);
    } else {
      std::memcpy(all, text.data() + begin, sizeof(Key));
    }
    Key key = std::bit_cast<Key>(all);
    for (std::size_t i = 0; i < key.size(); ++i) key[i] &= kMasks[bytes][i];
    key.back() |= std::uint64_t{bytes} << 56;
    return key;
  }

  // Returns the slot of a key; it holds the key, another or none.
  Entry& entry_for(const Key& key) {
    if (!entries_) allocate();
    std::uint64_t hash = key[0] * kMultiplier;
    hash = ((hash ^ hash >> 32) + key[1]) * kMultiplier;
    hash = ((hash ^ hash >> 32) + key[2]) * kMultiplier;
    return entries_[(hash >> 32) % kEntries];
  }

 private:
  // Bytes of a key that a word of each length has.
  static constexpr std::array<Key, kMaxBytes + 1> kMasks = [] {
    std::array<Key, kMaxBytes + 1> masks{};
    for (std::size_t bytes = 0; bytes <= kMaxBytes; ++bytes)
      for (std::size_t byte = 0; byte < bytes; ++byte) masks[bytes][byte / 8] |= std::uint64_t{0xff} << byte % 8 * 8;
    return masks;
  }();
  static constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15u;  // as in mix() of BpeModel

  struct Free {
    void operator()(Entry* entries) const { std::free(entries); }
  };
  void allocate();

  static constexpr std::size_t kEntries = std::size_t{1} << 16;  // 4 MiB
  std::unique_ptr<Entry[], Free> entries_;                       // null until first use
};

}  // namespace megalith

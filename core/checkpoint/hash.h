// XXH3-128 (xxHash 0.8): hash of files and shards. The hash finds damage, not deliberate changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/files/handle.h"

struct XXH3_state_s;  // from xxHash

namespace megalith {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

std::string to_hex(const Hash128& hash);  // 32 lower-case digits, as xxhsum -H2 prints
std::optional<Hash128> hash_from_hex(std::string_view text);

void free_hash_state(XXH3_state_s* state);

class Hasher {
 public:
  Hasher();
  void reset();
  void update(std::span<const std::byte> bytes);
  Hash128 digest() const;

 private:
  Handle<XXH3_state_s*, free_hash_state, nullptr> state_;
};

Hash128 hash_of(std::string_view text);

}  // namespace megalith

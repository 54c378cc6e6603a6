// XXH3-128 (xxHash 0.8), the hash of files and shards: it finds damage, it is no defence against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace megalith {

struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

std::string to_hex(const Hash128& hash);  // 32 lower-case digits, as xxhsum -H2 prints it
std::optional<Hash128> hash_from_hex(std::string_view text);

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void reset();
  void update(std::span<const std::byte> bytes);
  Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Hash128 hash_of(std::string_view text);

}  // namespace megalith

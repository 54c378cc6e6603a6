#include "core/checkpoint/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <new>

namespace megalith {

namespace {

Hash128 hash128(const XXH128_hash_t& hash) { return {.low = hash.low64, .high = hash.high64}; }

}  // namespace

void free_hash_state(XXH3_state_s* state) { XXH3_freeState(state); }

Hasher::Hasher() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  reset();
}

void Hasher::reset() { XXH3_128bits_reset(state_.get()); }

void Hasher::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

Hash128 Hasher::digest() const { return hash128(XXH3_128bits_digest(state_.get())); }

std::string to_hex(const Hash128& hash) { return fmt::format("{:016x}{:016x}", hash.high, hash.low); }

std::optional<Hash128> hash_from_hex(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  Hash128 hash;
  std::from_chars(text.data(), text.data() + 16, hash.high, 16);
  std::from_chars(text.data() + 16, text.data() + 32, hash.low, 16);
  if (to_hex(hash) != text) return std::nullopt;  // one spelling only
  return hash;
}

Hash128 hash_of(std::string_view text) { return hash128(XXH3_128bits(text.data(), text.size())); }

}  // namespace megalith

#include "core/checkpoint/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <new>

#include "core/base/handle.h"

namespace megalith {

struct Hasher::State {
  Handle<XXH3_state_t*, XXH3_freeState, nullptr> xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  state_->xxh = Handle<XXH3_state_t*, XXH3_freeState, nullptr>(XXH3_createState());
  if (!state_->xxh) throw std::bad_alloc();
  reset();
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::reset() { XXH3_128bits_reset(state_->xxh.get()); }

void Hasher::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}

Hash128 Hasher::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh.get());
  return {.low = hash.low64, .high = hash.high64};
}

std::string to_hex(const Hash128& hash) { return fmt::format("{:016x}{:016x}", hash.high, hash.low); }

std::optional<Hash128> hash_from_hex(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  Hash128 hash;
  const char* begin = text.data();
  const auto high = std::from_chars(begin, begin + 16, hash.high, 16);
  const auto low = std::from_chars(begin + 16, begin + 32, hash.low, 16);
  if (high.ptr != begin + 16 || low.ptr != begin + 32 || to_hex(hash) != text) return std::nullopt;
  return hash;
}

Hash128 hash_of(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {.low = hash.low64, .high = hash.high64};
}

}  // namespace megalith

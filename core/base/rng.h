// Random numbers that depend on their purpose, not on the order of draws. The generator is the counter-based Philox
// 4x32-10 of Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// A 128-bit counter and a 64-bit key give 128 random bits. The code is integer arithmetic, or fp64 with explicit fused
// multiply-adds and no C library. The bits are therefore equal on every x86-64-v3 machine.
//
// Keys: each use derives a separate key from the values that are fixed for many numbers,
//     derive_key(seed, {a, b, c, d}) = first two words of philox(counter = {a, b, c, d}, key = {seed low, seed high}),
// where the top byte of d identifies the use:
//     weights   {name hash low, high, 0, kRngWeights}       counter {element / 4 low, high, 0, 0}, word element % 4
//     sampling  {0, 0, 0, kRngSampling}                     counter {position, row, 0, 0}, words 0 and 1
//     dropout   {iteration low, high, layer, kRngDropout | site}   counter: core/ops/elementwise/dropout.h
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace megalith {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53u;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57u;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9u;  // added to the key each round
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr std::uint32_t kPhiloxRounds = 10;

constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (std::uint32_t round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key = {key[0] + kPhiloxWeyl0, key[1] + kPhiloxWeyl1};
  }
  return counter;
}

inline constexpr std::uint32_t kRngWeights = 0x01000000u;
inline constexpr std::uint32_t kRngSampling = 0x02000000u;
inline constexpr std::uint32_t kRngDropout = 0x03000000u;

constexpr PhiloxKey derive_key(std::uint64_t seed, const PhiloxCounter& use) {
  const PhiloxCounter bits =
      philox4x32_10(use, {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return {bits[0], bits[1]};
}

// Returns a uniform number in [0, 1) with 53 bits from two words.
constexpr double uniform(std::uint32_t low, std::uint32_t high) {
  return static_cast<double>((std::uint64_t{high} << 21) ^ (low >> 11)) * 0x1p-53;
}

// Returns the hash of a parameter's logical name: FNV-1a of 64 bits.
constexpr std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// Slice of a parameter's normal numbers. Element i of `out` is number offset + i, so any slice gives equal values.
struct NormalNumbers {
  std::uint64_t seed = 0;
  std::uint64_t name_hash = 0;  // hash_name(logical name)
  std::int64_t offset = 0;      // index of out[0] in the full parameter
  float mean = 0;
  float std = 1;

  constexpr PhiloxKey key() const {
    return derive_key(
        seed, {static_cast<std::uint32_t>(name_hash), static_cast<std::uint32_t>(name_hash >> 32), 0, kRngWeights});
  }
};

// Fills `out` with fp32 normal numbers: four numbers per Philox block (core/base/normal.h).
void fill_normal(std::span<float> out, const NormalNumbers& numbers);

}  // namespace megalith

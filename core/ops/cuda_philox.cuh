// Philox 4x32-10 of core/base/rng.h on the device, with the CPU's bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/rng.h"

namespace megalith::cuda {

struct DeviceKey {
  std::uint32_t word[2];
};

// Round keys in registers, for a kernel that makes several blocks with one key.
struct RoundKeys {
  std::uint32_t word[2 * kPhiloxRounds];
  __device__ explicit RoundKeys(DeviceKey key) {
#pragma unroll
    for (std::uint32_t round = 0; round < kPhiloxRounds; ++round) {
      word[2 * round] = key.word[0] + round * kPhiloxWeyl0;
      word[2 * round + 1] = key.word[1] + round * kPhiloxWeyl1;
      asm volatile("" : "+r"(word[2 * round]), "+r"(word[2 * round + 1]));  // otherwise recomputed for each block
    }
  }
};

__device__ inline uint4 philox(uint4 counter, const RoundKeys& keys) {
#pragma unroll
  for (std::uint32_t round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter.x;
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter.z;
    counter = make_uint4(static_cast<std::uint32_t>(product1 >> 32) ^ counter.y ^ keys.word[2 * round],
                         static_cast<std::uint32_t>(product1),
                         static_cast<std::uint32_t>(product0 >> 32) ^ counter.w ^ keys.word[2 * round + 1],
                         static_cast<std::uint32_t>(product0));
  }
  return counter;
}

__device__ inline uint4 philox(uint4 counter, DeviceKey key) {
#pragma unroll
  for (std::uint32_t round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * counter.x;
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * counter.z;
    counter = make_uint4(
        static_cast<std::uint32_t>(product1 >> 32) ^ counter.y ^ key.word[0], static_cast<std::uint32_t>(product1),
        static_cast<std::uint32_t>(product0 >> 32) ^ counter.w ^ key.word[1], static_cast<std::uint32_t>(product0));
    key.word[0] += kPhiloxWeyl0;
    key.word[1] += kPhiloxWeyl1;
  }
  return counter;
}

__device__ inline DeviceKey key_for(std::uint64_t seed, uint4 use) {
  const uint4 bits = philox(use, DeviceKey{{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}});
  return {{bits.x, bits.y}};
}

__device__ inline double uniform_number(std::uint32_t low, std::uint32_t high) {
  return static_cast<double>((std::uint64_t{high} << 21) ^ (low >> 11)) * 0x1p-53;
}

}  // namespace megalith::cuda

// What the grouped products of Hopper share. A block is one warpgroup that fills stages of shared memory, and two that
// multiply, most often the halves of a tile's rows. Blocks are persistent; all derive the order of tiles from the
// offsets.
#pragma once

#include "core/ops/cuda_hopper.cuh"

namespace megalith::cuda::hopper {

using Bf16 = __nv_bfloat16;

inline constexpr int kRows = 128, kDepth = 64;  // of a tile, of a stage
inline constexpr int kHalf = 64;                // rows of a multiplying warpgroup
inline constexpr int kWarpgroup = 128;
inline constexpr int kBytesA = kRows * kDepth * 2;
inline constexpr int kBoxBytes = 64 * 128;  // 64 rows of 128 bytes
inline constexpr int kMostExperts = 512;

__device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Position in the ring of stages; `parity` is that of the round.
template <int kStages>
struct Ring {
  int stage = 0;
  unsigned parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ void skip(int stages) {
    const int at = stage + stages;
    stage = at % kStages;
    parity ^= static_cast<unsigned>(at / kStages) & 1;
  }
};

__device__ inline unsigned packed(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const unsigned&>(v);
}
__device__ inline float2 unpacked(unsigned v) { return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v)); }

__device__ inline uint4 load_shared(unsigned address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Adds to floats in shared memory, or overwrites them.
template <bool kAdds>
__device__ inline void put_shared(unsigned at, float a) {
  float x = a;
  if constexpr (kAdds) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
    x += a;
  }
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
template <bool kAdds>
__device__ inline void put_shared(unsigned at, float a, float b) {
  float x = a, y = b;
  if constexpr (kAdds) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(at) : "memory");
    x += a;
    y += b;
  }
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}

}  // namespace megalith::cuda::hopper

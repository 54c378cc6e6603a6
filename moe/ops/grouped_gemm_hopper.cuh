// What the grouped products of Hopper share. A block is one warpgroup that fills stages of shared memory, and two that
// multiply, most often the halves of a tile's rows. Blocks are persistent, and take tile after tile of an order that
// follows from the offsets.
#pragma once

#include "core/device/cuda/bulk_copy.cuh"
#include "moe/ops/cuda_experts.cuh"
#include "moe/ops/cuda_hopper.cuh"

namespace megalith::cuda::hopper {

using Bf16 = __nv_bfloat16;

inline constexpr int kRows = 128, kDepth = 64;  // of a tile, of a stage
inline constexpr int kHalf = 64;                // rows of a multiplying warpgroup
inline constexpr int kWarpgroup = 128;
inline constexpr int kBytesA = kRows * kDepth * 2;
inline constexpr int kBoxBytes = 64 * 128;  // 64 rows of 128 bytes
inline constexpr int kMostExperts = 512;
inline constexpr int kMostShared = 227 << 10;  // bytes of a block

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

// The numbers of a block's tiles, ascending. Blocks share a counter, so that one which begins late, behind another
// kernel on its multiprocessor, has fewer. One thread takes them, each while it fills the last stages of the tile
// before, so that blocks end together; all others read them in order, at most kBehind tiles later.
template <int kStages>
struct TileNumbers {
  static constexpr int kBehind = kStages + 2;  // a stage a tile: those, and two whose results are stored
  static constexpr int kCount = 8;
  static_assert(kCount > kBehind);
  int number[kCount];
  std::uint64_t known[kCount];

  __device__ void init() {
    for (std::uint64_t& barrier : known) barrier_init(shared_address(&barrier), 1);
  }
};

// All may call it; only the block's first thread acts. Each number is taken a while before it is handed out, which
// waits for it.
template <int kStages>
class TileTaker {
 public:
  // `next_tile` is zero when the kernel begins.
  __device__ TileTaker(int* next_tile, TileNumbers<kStages>& numbers) : next_tile_(next_tile), numbers_(numbers) {
    take();
  }
  // At each of the `stages` of a tile: one of the last is where its follower is taken.
  __device__ void at(int stage, int stages) {
    if (stage == max(0, stages - kStagesAhead)) take();
  }
  __device__ void hand_out() {
    if (threadIdx.x != 0) return;
    const unsigned at = taken_++ % numbers_.kCount;
    numbers_.number[at] = held_;
    barrier_arrive(shared_address(&numbers_.known[at]));
  }

 private:
  static constexpr int kStagesAhead = 4;  // what an answer takes
  __device__ void take() {
    if (threadIdx.x == 0) held_ = atomicAdd(next_tile_, 1);
  }

  int* next_tile_;
  TileNumbers<kStages>& numbers_;
  unsigned taken_ = 0;
  int held_ = 0;
};

template <int kStages>
class TileReader {
 public:
  __device__ explicit TileReader(const TileNumbers<kStages>& numbers) : numbers_(numbers) {}
  __device__ int next() {
    const unsigned at = read_ % numbers_.kCount;
    barrier_wait(shared_address(&numbers_.known[at]), read_ / numbers_.kCount & 1);
    ++read_;
    return numbers_.number[at];
  }

 private:
  const TileNumbers<kStages>& numbers_;
  unsigned read_ = 0;
};

// By the first warp: for each expert the sum of tiles_of(rows) over the experts before.
template <class TilesOf>
__device__ inline void count_tiles(int* before, const RoutedExperts& experts, const TilesOf& tiles_of) {
  const int lane = static_cast<int>(threadIdx.x);
  int sum = 0;
  for (int first = 0; first < experts.count; first += 32) {
    const int e = first + lane;
    int tiles = e < experts.count ? tiles_of(max(0, experts.before(e + 1) - experts.before(e))) : 0;
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(~0u, tiles, step);
      if (lane >= step) tiles += below;
    }
    if (e < experts.count) before[e + 1] = sum + tiles;
    sum += __shfl_sync(~0u, tiles, 31);
  }
  if (lane == 0) before[0] = 0;
}

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

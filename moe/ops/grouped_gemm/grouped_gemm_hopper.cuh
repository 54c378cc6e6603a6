// Shared code of Hopper's grouped GEMM kernels: tile sizes, pipeline and mainloop. A block (CTA) is persistent and
// warp-specialized. A producer warpgroup fills stages of shared memory, and two consumer warpgroups multiply them by
// wgmma. Full barriers signal filled stages to consumers; empty barriers signal free stages to the producer.
#pragma once

#include "core/device/cuda/bulk_copy.cuh"
#include "moe/ops/cuda_experts.cuh"
#include "moe/ops/cuda_gather.cuh"
#include "moe/ops/grouped_gemm/cuda_hopper.cuh"

namespace megalith::cuda::hopper {

using Bf16 = __nv_bfloat16;

// BLOCK_M and BLOCK_K of a tile and a stage; traits define BLOCK_N.
inline constexpr int kBlockM = 128, kBlockK = 64;
inline constexpr int kConsumers = 2;                                                // consumer warpgroups per block
inline constexpr int kBoxBytes = 64 * kSwizzleBytes;                                // TMA box of 64 rows
inline constexpr int kBoxColumns = kSwizzleBytes / static_cast<int>(sizeof(Bf16));  // bf16 columns per box
inline constexpr int kStageBytesA = kBlockM * kBlockK * static_cast<int>(sizeof(Bf16));
inline constexpr int kMaxExperts = 512;            // a block keeps their offsets in shared memory
inline constexpr int kMaxSharedBytes = 227 << 10;  // per block; the runtime reserves 1 KiB of 228 KiB
static_assert(kBlockK == kBoxColumns, "a K-major stage has one box of columns");
static_assert(kBlockM == 2 * kWgmmaM, "a tile's rows are two wgmmas");

// Registers per thread at launch: an equal share of the multiprocessor's 65,536, in units of 8.
constexpr int launch_registers(int threads) { return 65'536 / threads / 8 * 8; }
// Registers per consumer thread, for setmaxnreg: the block's, minus `others` for each thread of the other warpgroups.
constexpr int consumer_registers(int threads, int others) {
  const int warpgroups = threads / kWarpgroupThreads;
  return (launch_registers(threads) * warpgroups - others * (warpgroups - kConsumers)) / kConsumers / 8 * 8;
}

__device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Byte offset of a 16-byte chunk in a swizzled tile of 128-byte rows.
__device__ inline int swizzle_offset(int row, int chunk) {
  return row * kSwizzleBytes + ((chunk ^ row % kSwizzleRows) << 4);
}

// Position in the circular buffer of stages; `phase` is the parity of the round.
template <int kStages>
struct PipelineState {
  int stage = 0;
  unsigned phase = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ void advance(int stages) {
    const int at = stage + stages;
    stage = at % kStages;
    phase ^= static_cast<unsigned>(at / kStages) & 1;
  }
};

// Mainloop step: a warpgroup multiplies a stage as one wgmma group. It then frees the stage of the previous step, whose
// group is complete by then. Accumulators [kTilesM] are for 64-row tiles, spaced by one TMA box of A. `unreleased`:
// empty barrier of the stage that in-flight wgmmas read.
template <Major kMajorA, Major kMajorB, int kTilesM, int kCount>
__device__ inline void mainloop_step(float (&accumulators)[kTilesM][kCount], std::uint64_t a, std::uint64_t b,
                                     bool first_k_block, int lane, unsigned empty_barrier, unsigned& unreleased) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kBlockK / kWgmmaK; ++i) {
#pragma unroll
    for (int m = 0; m < kTilesM; ++m) {
      wgmma<kMajorA, kMajorB>(accumulators[m], a + i * kDescriptorStep<kMajorA> + m * (kBoxBytes >> 4),
                              b + i * kDescriptorStep<kMajorB>, first_k_block && i == 0);
    }
  }
  wgmma_commit_group();
  wgmma_wait_group<1>();
  if (!first_k_block && lane == 0) mbarrier_arrive(unreleased);
  unreleased = empty_barrier;
}

// End of the mainloop: completes all accumulators and frees the last stage.
template <int kTilesM, int kCount>
__device__ inline void mainloop_end(float (&accumulators)[kTilesM][kCount], int lane, unsigned unreleased) {
  wgmma_wait_group<0>();
#pragma unroll
  for (int m = 0; m < kTilesM; ++m) wgmma_fence_accumulators(accumulators[m]);
  if (lane == 0) mbarrier_arrive(unreleased);
}

__device__ inline unsigned pack_bf16x2(float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  return reinterpret_cast<const unsigned&>(v);
}
__device__ inline float2 unpack_bf16x2(unsigned v) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
}

__device__ inline uint4 load_shared(unsigned address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Stores floats to shared memory, or adds them to its values.
template <bool kAdds>
__device__ inline void store_shared(unsigned to, float a) {
  float x = a;
  if constexpr (kAdds) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(to) : "memory");
    x += a;
  }
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
template <bool kAdds>
__device__ inline void store_shared(unsigned to, float a, float b) {
  float x = a, y = b;
  if constexpr (kAdds) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(to) : "memory");
    x += a;
    y += b;
  }
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

}  // namespace megalith::cuda::hopper

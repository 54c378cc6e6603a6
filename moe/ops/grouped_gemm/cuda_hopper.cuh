// PTX wrappers of Hopper instructions (sm_90a), with PTX ISA 8.x names: tensor copies by TMA, wgmma, setmaxnreg, named
// barriers. Bulk copies and mbarriers are in core/device/cuda/bulk_copy.cuh. The functions compile for all targets, but
// only Hopper kernels may call them.
//   Warpgroup: four consecutive warps, the first with a number divisible by four.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "core/device/cuda/bulk_copy.cuh"
#include "core/device/cuda/named_barrier.cuh"

namespace megalith::cuda {

// Threads of a warpgroup, and M and K of one bf16 wgmma.
inline constexpr int kWarpgroupThreads = 128, kWgmmaM = 64, kWgmmaK = 16;
// Tiles in shared memory have rows of 128 bytes with TMA's 128-byte swizzle. In each group of 8 rows, the 16-byte chunk
// c of row r is stored at chunk c ^ r % 8. A column of chunks thus spreads over all banks.
inline constexpr int kSwizzleBytes = 128, kSwizzleRows = 8, kChunkBytes = 16;

// TMA load of a box from (column, row) of a 2-D tensor to shared memory. The mbarrier counts all bytes of the box.
// Elements outside of the tensor arrive as zeros.
__device__ inline void tma_load(unsigned to, const CUtensorMap* map, unsigned barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

// TMA load of a box of a 3-D tensor.
__device__ inline void tma_load(unsigned to, const CUtensorMap* map, unsigned barrier, int column, int row,
                                int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}

// TMA store, or reduction by addition, of a box from shared memory to a 3-D tensor. Elements outside of the tensor are
// dropped. Both belong to the thread's bulk groups.
__device__ inline void tma_store(const CUtensorMap* map, unsigned from, int column, int row, int matrix) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(from), "r"(column), "r"(row), "r"(matrix)
               : "memory");
}
__device__ inline void tma_reduce_add(const CUtensorMap* map, unsigned from, int column, int row, int matrix) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(from), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}
// cp.async of 16 bytes to shared memory: from global memory if `live`, else zeros.
__device__ inline void cp_async_16(unsigned to, const void* from, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(live ? 16 : 0) : "memory");
}
// Arrives at the mbarrier when this thread's earlier cp.async are complete; counts as one arrival (noinc).
__device__ inline void cp_async_mbarrier_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// setmaxnreg: changes the registers per thread of a warpgroup.
template <int kRegisters>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// stmatrix: four 8 x 8 bf16 matrices from a warp's registers to shared memory. Lane i passes the address of row i % 8
// of matrix i / 8; lane 4 r + c / 2 holds element (r, c).
__device__ inline void stmatrix_x4(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// The dim along which an operand's 128-byte rows run in shared memory: k ("K-major"), or m or n ("MN-major").
enum class Major { kK, kMn };

// wgmma descriptor of an operand with the 128-byte swizzle.
//   kK:  a row has 64 values of k, one row per m or n.
//   kMn: a row has 64 values of m or n, one row per k; `stride` is the distance in bytes to the next 64 of m or n.
template <Major kMajor>
__device__ inline std::uint64_t wgmma_descriptor(unsigned address, unsigned stride = 0) {
  constexpr std::uint64_t kSwizzle128 = 1;                              // layout type
  const std::uint64_t leading = kMajor == Major::kK ? 1 : stride >> 4;  // K-major with a swizzle: ignored
  return (std::uint64_t{(address & 0x3FFFF) >> 4}) | (leading << 16) |
         (std::uint64_t{kSwizzleRows * kSwizzleBytes >> 4} << 32) | (kSwizzle128 << 62);
}
// Increment of a descriptor, in units of 16 bytes, to the next kWgmmaK values of k.
template <Major kMajor>
inline constexpr std::uint64_t kDescriptorStep = (kMajor == Major::kK ? kWgmmaK * 2 : kWgmmaK * kSwizzleBytes) >> 4;

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of the accumulators ahead of the wgmma_wait_group before this call.
template <int kCount>
__device__ inline void wgmma_fence_accumulators(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// One wgmma by a warpgroup: d = a b, plus d unless `zero`; M = 64, N = 192 or 256 by the size of d, K = 16, bf16 with
// fp32 accumulators. Accumulator 4 j + 2 h + i of a thread belongs to row 16 warp + 8 h + lane / 4 and column
// 8 j + 2 (lane % 4) + i.
#define MEGALITH_D8(d, i)                                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define MEGALITH_D32(d, i) MEGALITH_D8(d, i), MEGALITH_D8(d, i + 8), MEGALITH_D8(d, i + 16), MEGALITH_D8(d, i + 24)

template <Major kMajorA, Major kMajorB>
__device__ inline void wgmma(float (&d)[96], std::uint64_t a, std::uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.eq.b32 add, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"
      "%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,"
      "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95}, %96, %97, add, 1, 1, %99, %100;\n}"
      : MEGALITH_D32(d, 0), MEGALITH_D32(d, 32), MEGALITH_D32(d, 64)
      : "l"(a), "l"(b), "r"(static_cast<int>(zero)), "n"(kMajorA == Major::kK ? 0 : 1),
        "n"(kMajorB == Major::kK ? 0 : 1));
}
template <Major kMajorA, Major kMajorB>
__device__ inline void wgmma(float (&d)[128], std::uint64_t a, std::uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.eq.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"
      "%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,"
      "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,"
      "%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, add, 1, 1, "
      "%131, %132;\n}"
      : MEGALITH_D32(d, 0), MEGALITH_D32(d, 32), MEGALITH_D32(d, 64), MEGALITH_D32(d, 96)
      : "l"(a), "l"(b), "r"(static_cast<int>(zero)), "n"(kMajorA == Major::kK ? 0 : 1),
        "n"(kMajorB == Major::kK ? 0 : 1));
}
#undef MEGALITH_D8
#undef MEGALITH_D32

}  // namespace megalith::cuda

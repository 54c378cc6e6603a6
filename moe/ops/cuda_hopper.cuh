// Hopper's own instructions (sm_90a), as PTX ISA 8.x names them, beside those of core/device/cuda/bulk_copy.cuh: boxes
// by the tensor memory accelerator, warpgroup products. Everything compiles for other targets too, where it must not be
// reached.
//   A warpgroup is four consecutive warps, the first of a number divisible by four.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "core/device/cuda/bulk_copy.cuh"

namespace megalith::cuda {

// A box of a 2-D tensor, from its column and row on, to shared memory; the barrier gets the box's bytes, also where
// part of it lies outside of the tensor, which arrives as zeros.
__device__ inline void copy_box(unsigned to, const CUtensorMap* map, unsigned barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

// The same of a 3-D tensor.
__device__ inline void copy_box(unsigned to, const CUtensorMap* map, unsigned barrier, int column, int row,
                                int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}

// Stores a box in shared memory to that of a 3-D tensor, or adds it, as far as it lies inside; in groups.
__device__ inline void store_box(const CUtensorMap* map, unsigned from, int column, int row, int matrix) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(from), "r"(column), "r"(row), "r"(matrix)
               : "memory");
}
__device__ inline void add_box(const CUtensorMap* map, unsigned from, int column, int row, int matrix) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(from), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}
// 16 bytes from memory, or zeros.
__device__ inline void copy_16(unsigned to, const void* from, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(live ? 16 : 0) : "memory");
}
// Arrives once this thread's copies so far have; the arrival is one of the barrier's count.
__device__ inline void barrier_arrive_after_copies(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Registers of each thread of a warpgroup, from what the kernel was launched with.
template <int kRegisters>
__device__ inline void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Threads that wait for each other at one of the block's 16 barriers.
__device__ inline void named_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Four 8x8 matrices of bf16 from a warp's registers to shared memory: lane i gives the address of row i % 8 of
// matrix i / 8; element (r, c) lies with lane 4 r + c / 2.
__device__ inline void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// An operand in shared memory whose rows of 128 bytes are swizzled as the copies above leave them (128-byte swizzle).
//   kAlongK: rows of 64 values of k, one row for each m or n; groups of 8 rows, 1024 bytes apart.
//   not:     rows of 64 values of m or n, one row for each k; `stride` bytes to the next 64 of m or n.
template <bool kAlongK>
__device__ inline std::uint64_t operand(unsigned address, unsigned stride = 0) {
  const std::uint64_t lead = kAlongK ? 1 : stride >> 4;
  return (std::uint64_t{(address & 0x3FFFF) >> 4}) | (lead << 16) | (std::uint64_t{1024 >> 4} << 32) |
         (std::uint64_t{1} << 62);
}
// What to add to an operand to get to the next 16 values of k.
template <bool kAlongK>
inline constexpr std::uint64_t kNext16 = (kAlongK ? 32 : 16 * 128) >> 4;

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// After the wait for the product that made them: no use of the results is moved before it.
template <int kCount>
__device__ inline void results_are_ready(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// d = a b (+ d unless `fresh`): 64 x kColumns x 16, bf16 into fp32. Of d, a thread's value 4 j + 2 h + i is that of row
// 16 warp + 8 h + lane / 4 and column 8 j + 2 (lane % 4) + i.
#define MEGALITH_D8(d, i)                                                                                     \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define MEGALITH_D32(d, i) MEGALITH_D8(d, i), MEGALITH_D8(d, i + 8), MEGALITH_D8(d, i + 16), MEGALITH_D8(d, i + 24)

template <bool kAAlongK, bool kBAlongK>
__device__ inline void multiply(float (&d)[96], std::uint64_t a, std::uint64_t b, bool fresh) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.eq.b32 add, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"
      "%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,"
      "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95}, %96, %97, add, 1, 1, %99, %100;\n}"
      : MEGALITH_D32(d, 0), MEGALITH_D32(d, 32), MEGALITH_D32(d, 64)
      : "l"(a), "l"(b), "r"(static_cast<int>(fresh)), "n"(kAAlongK ? 0 : 1), "n"(kBAlongK ? 0 : 1));
}
template <bool kAAlongK, bool kBAlongK>
__device__ inline void multiply(float (&d)[128], std::uint64_t a, std::uint64_t b, bool fresh) {
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
      : "l"(a), "l"(b), "r"(static_cast<int>(fresh)), "n"(kAAlongK ? 0 : 1), "n"(kBAlongK ? 0 : 1));
}
#undef MEGALITH_D8
#undef MEGALITH_D32

}  // namespace megalith::cuda

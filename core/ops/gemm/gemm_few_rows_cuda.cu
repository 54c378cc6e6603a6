// Memory-bound: b is read once, bypassing L1. A warp owns a part of k of two rows of b, with 32 bytes of each in flight
// per lane. Many small blocks use more bandwidth than many loads per lane. The block adds the parts in order:
// deterministic.
#include "core/ops/gemm/gemm_few_rows_cuda.h"

#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kSplit = 4;                  // warps that split k
constexpr int kColumns = 2;                // rows of b that a warp owns
constexpr int kLoads = 2;                  // packs of each in flight per lane
constexpr int kStride = 32 * kPack<bf16>;  // elements between them
constexpr int kTurn = kLoads * kStride;    // elements of k per iteration

struct FewRowsArguments {
  const bf16 *a, *b, *bias;
  void* c;
  std::int64_t stride_a, stride_b, stride_c;
  int rows, columns, k;  // m, n, k
  int part;              // part of k that a warp owns
  bool wide;             // c is fp32
  bool constant;         // b
};

__device__ inline uint4 load_once(const bf16* p) {
  uint4 raw;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(p));
  return raw;
}

__device__ inline float multiply(uint4 a, uint4 b, float sum) {
  const Floats<bf16> x(a), y(b);
#pragma unroll
  for (int j = 0; j < kPack<bf16>; ++j) sum = fmaf(x[j], y[j], sum);
  return sum;
}

// A warp's rows of b over its part of k, times all rows of a. kRows is m, rounded up.
template <int kRows>
struct WarpProduct {
  const bf16* b[kColumns];
  uint4 raw[kColumns][kLoads];
  float sums[kRows * kColumns] = {};

  __device__ void load(int k, int end) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = k + i * kStride;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) raw[c][i] = at < end ? load_once(b[c] + at) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ void multiply_with(const FewRowsArguments& x, int k, int end) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = k + i * kStride;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint4 a = at < end && r < x.rows ? load_full(x.a + r * x.stride_a + at) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          float& sum = sums[r * kColumns + c];
          sum = multiply(a, raw[c][i], sum);
        }
      }
    }
  }
};

template <int kRows>
__global__ void __launch_bounds__(kThreads) gemm_few_rows_kernel(const FewRowsArguments x) {
  constexpr int kSums = kRows * kColumns;
  __shared__ float parts[kWarps][kSums];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = (static_cast<int>(blockIdx.x) * (kWarps / kSplit) + warp / kSplit) * kColumns;
  const int begin = warp % kSplit * x.part + lane * kPack<bf16>, end = min(x.k, (warp % kSplit + 1) * x.part);
  WarpProduct<kRows> product;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) product.b[c] = x.b + min(first + c, x.columns - 1) * x.stride_b;
  let_next_grid_start();
  if (!x.constant) wait_for_previous_grids();
  product.load(begin, end);
  if (x.constant) wait_for_previous_grids();
  product.multiply_with(x, begin, end);
  for (int k = begin + kTurn; k < end; k += kTurn) {
    product.load(k, end);
    product.multiply_with(x, k, end);
  }
  float sum = spread_sum(product.sums);
  const int which = lane / (32 / kSums);
  if (lane % (32 / kSums) == 0) parts[warp][which] = sum;
  __syncthreads();
  if (warp % kSplit != 0) return;
  sum = parts[warp][which];
#pragma unroll
  for (int part = 1; part < kSplit; ++part) sum += parts[warp + part][which];
  const int row = which / kColumns, column = first + which % kColumns;
  if (lane % (32 / kSums) != 0 || row >= x.rows || column >= x.columns) return;
  if (x.bias != nullptr) sum += widen(x.bias[column]);
  const std::int64_t at = row * x.stride_c + column;
  if (x.wide) {
    static_cast<float*>(x.c)[at] = sum;
  } else {
    static_cast<bf16*>(x.c)[at] = narrow<bf16>(sum);
  }
}

}  // namespace

bool suits_few_rows(const Gemm& op) {
  const std::int64_t rows = op.a.size(0), k = op.a.size(-1);
  return rows > 0 && rows <= kFewRows && k > 0 && op.a.dtype == DType::kBf16 && !op.transpose_a && op.transpose_b &&
         !op.accumulate && !op.pre_activation && !op.gelu_input && rows_aligned(op.a, op.b) && op.b.size(0) > 0 &&
         op.b.size(0) < kMaxIndex / 2 && k < kMaxIndex / 2;
}

void run_few_rows(CudaStream& stream, const Gemm& op) {
  const FewRowsArguments x{.a = op.a.as<const bf16>(),
                           .b = op.b.as<const bf16>(),
                           .bias = op.bias.as<const bf16>(),
                           .c = op.c.data,
                           .stride_a = op.a.stride(0),
                           .stride_b = op.b.stride(0),
                           .stride_c = op.c.stride(0),
                           .rows = static_cast<int>(op.a.size(0)),
                           .columns = static_cast<int>(op.b.size(0)),
                           .k = static_cast<int>(op.a.size(1)),
                           .part = static_cast<int>(ceil_divide(ceil_divide(op.a.size(1), kSplit), kStride)) * kStride,
                           .wide = op.c.dtype == DType::kFp32,
                           .constant = op.b_is_constant};
  const Grid grid{blocks_for(x.columns, kWarps / kSplit * kColumns), kThreads};
  switch (x.rows) {
    case 1: return launch_early(stream, grid, gemm_few_rows_kernel<1>, x);
    case 2: return launch_early(stream, grid, gemm_few_rows_kernel<2>, x);
    default: return launch_early(stream, grid, gemm_few_rows_kernel<4>, x);
  }
}

}  // namespace megalith

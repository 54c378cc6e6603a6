// Memory-bound, one pass. ReduceRows: a block owns a stripe of columns and a piece of the rows; where the pieces are
// several, a second launch adds their sums in order. ReduceToScalar sums in fp64: blocks own kSumSlice elements at a
// time, and a second kernel adds the blocks' sums. Deterministic: pieces, slices and trees depend on the shape alone.
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/reduce.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kLanes = 8;      // packs of a stripe: 128 bytes of a row
constexpr int kRowLanes = 32;  // rows at a time
constexpr int kUnrolled = 8;
static_assert(kRowLanes * kUnrolled == kMinRowsOfPiece && kLanes * sizeof(uint4) == kStripeBytes);

struct RowsArguments {
  Rows x;
  std::int64_t rows;
  const std::int32_t* bound;
  int columns;
  void* out;  // [pieces, columns]
  bool accumulate;
};

template <class T, class Out, bool kVector>
__global__ void __launch_bounds__(kLanes* kRowLanes) reduce_rows_kernel(const RowsArguments a) {
  constexpr int kWidth = kPack<T>;
  __shared__ float shared[kRowLanes / 4][kLanes * kWidth + 1];
  const int lane = static_cast<int>(threadIdx.x) % kLanes, row_lane = static_cast<int>(threadIdx.x) / kLanes;
  const int first = (static_cast<int>(blockIdx.x) * kLanes + lane) * kWidth;
  const std::int64_t rows = a.bound == nullptr ? a.rows : *a.bound;
  const std::int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
  Floats<T> sums;
  for (std::int64_t row = begin + row_lane; row < end; row += kRowLanes * kUnrolled) {
    uint4 raw[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const std::int64_t at = row + u * kRowLanes;
      raw[u] = load_of_row<T, kVector>(a.x.at<const T>(at), first, at < end ? a.columns : 0);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) sums += Floats<T>(raw[u]);
  }
  // The four row lanes of a warp, then the warps.
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    sums[j] += __shfl_xor_sync(kAllLanes, sums[j], 16);
    sums[j] += __shfl_xor_sync(kAllLanes, sums[j], 8);
    if (threadIdx.x % 32 < kLanes) shared[threadIdx.x / 32][lane * kWidth + j] = sums[j];
  }
  __syncthreads();
  const int column = static_cast<int>(blockIdx.x) * kLanes * kWidth + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kLanes * kWidth || column >= a.columns) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kRowLanes / 4; ++w) total += shared[w][threadIdx.x];
  Out* out = static_cast<Out*>(a.out) + static_cast<std::int64_t>(blockIdx.y) * a.columns + column;
  *out = narrow<Out>(a.accumulate ? widen(*out) + total : total);
}

void launch_rows(CudaStream& stream, const Tensor& x, const Tensor& out, bool accumulate, std::int64_t pieces) {
  const RowsArguments a{.x = Rows(x),
                        .rows = x.size(0),
                        .bound = x.bound,
                        .columns = static_cast<int>(x.size(1)),
                        .out = out.data,
                        .accumulate = accumulate};
  Variants(x.dtype, out.dtype, rows_aligned(x)).visit([&](auto type, auto out_type, auto is_vector) {
    using T = decltype(type);
    const dim3 blocks(blocks_for(a.columns, kLanes * kPack<T>), static_cast<unsigned>(pieces));
    launch_kernel(stream, {blocks, kLanes * kRowLanes}, reduce_rows_kernel<T, decltype(out_type), is_vector()>, a);
  });
}

constexpr int kSumThreads = 256;
constexpr int kSumPacks = 8;  // loads in flight per thread
constexpr std::int64_t kSumSlice = std::int64_t{kSumThreads} * kSumPacks * kPack<float>;

// out[0] = total (+ out[0]).
struct SumTarget {
  float* out = nullptr;
  bool accumulate = false;

  __device__ void store(double total) const {
    *out = static_cast<float>(accumulate ? static_cast<double>(*out) + total : total);
  }
};

// One pass, memory-bound. Without a scratch there is one block.
template <bool kVector>
__global__ void __launch_bounds__(kSumThreads)
    reduce_to_scalar_kernel(const float* x, std::int64_t count, double* block_sums, SumTarget target) {
  __shared__ double shared[32];
  double sums[kPack<float>] = {};
  for (std::int64_t slice = blockIdx.x * kSumSlice; slice < count; slice += gridDim.x * kSumSlice) {
    uint4 raw[kSumPacks];
#pragma unroll
    for (int k = 0; k < kSumPacks; ++k) {
      const std::int64_t first = slice + (k * kSumThreads + static_cast<int>(threadIdx.x)) * kPack<float>;
      raw[k] = load_flat<float, kVector>(x, first, count);
    }
#pragma unroll
    for (int k = 0; k < kSumPacks; ++k) {
      const Floats<float> v(raw[k]);
#pragma unroll
      for (int j = 0; j < kPack<float>; ++j) sums[j] += static_cast<double>(v[j]);
    }
  }
  const double total = block_sum((sums[0] + sums[1]) + (sums[2] + sums[3]), shared);
  if (threadIdx.x > 0) return;
  if (block_sums == nullptr) {
    target.store(total);
  } else {
    block_sums[blockIdx.x] = total;
  }
}

// One block.
__global__ void __launch_bounds__(kSumThreads)
    reduce_to_scalar_add_kernel(const double* block_sums, int count, SumTarget target) {
  __shared__ double shared[32];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads) sum += block_sums[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) target.store(sum);
}

}  // namespace

void run(CudaStream& stream, const ReduceRows& op) {
  require(op.x.size(1) < kMaxIndex / 2, "ReduceRows: more than 2^30 columns");
  const std::int64_t pieces = pieces_of(op);
  if (pieces == 1) return launch_rows(stream, op.x, op.out, op.accumulate, 1);
  const Tensor partial(op.workspace.data, DType::kFp32, {pieces, op.x.size(1)});
  launch_rows(stream, op.x, partial, false, pieces);
  launch_rows(stream, partial, op.out, op.accumulate, 1);
}

void run(CudaStream& stream, const ReduceToScalar& op) {
  const std::int64_t slices = ceil_divide(op.x.numel(), kSumSlice);
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(slices, 1, kMaxSumBlocks));
  const SumTarget target{.out = op.out.as<float>(), .accumulate = op.accumulate};
  double* block_sums = blocks == 1 ? nullptr : op.workspace.as<double>();
  Variants(starts_aligned(op.x)).visit([&](auto is_vector) {
    launch_kernel(stream, {blocks, kSumThreads}, reduce_to_scalar_kernel<is_vector()>, op.x.as<const float>(),
                  op.x.numel(), block_sums, target);
  });
  if (block_sums == nullptr) return;
  launch_kernel(stream, {1, kSumThreads}, reduce_to_scalar_add_kernel, block_sums, static_cast<int>(blocks), target);
}

}  // namespace megalith

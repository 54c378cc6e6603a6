// Memory-bound, one pass. ReduceRows: a block owns a stripe of columns and a piece of the rows; where the pieces are
// several, a second kernel adds their sums in order. Deterministic: the pieces and the trees depend on the shape alone.
#include "core/ops/cuda_sum.cuh"
#include "core/ops/reduce.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kLanes = 8;      // packs of a stripe: 128 bytes of a row
constexpr int kRowLanes = 32;  // rows at a time
constexpr int kUnrolled = 8;
static_assert(kRowLanes * kUnrolled == kMinRowsOfPiece && kLanes * sizeof(uint4) == kStripeBytes);

struct RowsArguments {
  const void* x;
  std::int64_t stride;
  std::int64_t rows;
  const std::int32_t* bound;
  int columns;
  void* out;  // [pieces, columns]
  bool accumulate;
};

template <class T, class Out, bool kVector>
__global__ void __launch_bounds__(kLanes* kRowLanes) add_rows(const RowsArguments a) {
  constexpr int kWidth = kPack<T>;
  __shared__ float shared[kRowLanes / 4][kLanes * kWidth + 1];
  const int lane = static_cast<int>(threadIdx.x) % kLanes, row_lane = static_cast<int>(threadIdx.x) / kLanes;
  const int first = (static_cast<int>(blockIdx.x) * kLanes + lane) * kWidth;
  const std::int64_t rows = a.bound == nullptr ? a.rows : *a.bound;
  const std::int64_t begin = rows * blockIdx.y / gridDim.y, end = rows * (blockIdx.y + 1) / gridDim.y;
  float sums[kWidth] = {};
  for (std::int64_t row = begin + row_lane; row < end; row += kRowLanes * kUnrolled) {
    uint4 raw[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      const std::int64_t at = row + u * kRowLanes;
      raw[u] = load_of_row<T, kVector>(static_cast<const T*>(a.x) + at * a.stride, first, at < end ? a.columns : 0);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      float v[kWidth];
      unpack<T>(raw[u], v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sums[j] += v[j];
    }
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

struct RowsDTypes {
  DType x, out;
};

void launch_rows(CudaStream& stream, RowsDTypes dtypes, bool vector, unsigned pieces, const RowsArguments& a) {
  visit_kernel(dtypes.x, vector, [&](auto type, auto is_vector) {
    using T = decltype(type);
    const dim3 grid(blocks_for(a.columns, kLanes * kPack<T>), pieces);
    visit_float(dtypes.out, [&](auto out) {
      add_rows<T, decltype(out), is_vector()><<<grid, kLanes * kRowLanes, 0, stream.handle()>>>(a);
    });
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void run(CudaStream& stream, const ReduceRows& op) {
  const std::int64_t columns = op.x.size(1), pieces = pieces_of(op);
  require(columns < kMaxIndex / 2, "ReduceRows: more than 2^30 columns");
  RowsArguments a{.x = op.x.data,
                  .stride = op.x.stride(0),
                  .rows = op.x.size(0),
                  .bound = op.x.bound,
                  .columns = static_cast<int>(columns),
                  .out = op.out.data,
                  .accumulate = op.accumulate};
  if (pieces == 1) return launch_rows(stream, {op.x.dtype, op.out.dtype}, rows_aligned(op.x), 1, a);
  float* partial = op.workspace.as<float>();
  a.out = partial, a.accumulate = false;
  launch_rows(stream, {op.x.dtype, DType::kFp32}, rows_aligned(op.x), static_cast<unsigned>(pieces), a);
  const RowsArguments last{.x = partial,
                           .stride = columns,
                           .rows = pieces,
                           .bound = nullptr,
                           .columns = static_cast<int>(columns),
                           .out = op.out.data,
                           .accumulate = op.accumulate};
  launch_rows(stream, {DType::kFp32, op.out.dtype}, columns % kPack<float> == 0, 1, last);
}

void run(CudaStream& stream, const ReduceToScalar& op) {
  launch_sum(stream, op.x, op.workspace.as<double>(), {.out = op.out.as<float>(), .accumulate = op.accumulate});
}

}  // namespace megalith

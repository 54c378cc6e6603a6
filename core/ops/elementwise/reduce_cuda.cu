// Memory-bound, one pass. ReduceRows: few rows are bound by latency, so that a block owns a narrow stripe of the
// columns and has all its rows in flight at once. With many rows a block owns a wider stripe of a piece of them. The
// pieces' sums are then rows of the launch that also sums few rows. ReduceToScalar sums in fp64: blocks own kSumSlice
// elements at a time, and a second kernel adds the blocks' sums. Deterministic: pieces, slices and trees depend on the
// shape alone.
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "core/ops/elementwise/reduce.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kRowsThreads = 256;
constexpr int kUnrolled = 8;   // rows in flight per thread
constexpr int kWideLanes = 8;  // packs of a piece's stripe: 128 bytes of a row
constexpr int kLanes = 2;      // packs of a stripe in one pass: a sector
static_assert(kRowsThreads / kWideLanes * kUnrolled == kMinRowsOfPiece && kWideLanes * sizeof(uint4) == kStripeBytes);

constexpr int kMaxSums = 8;  // sums per launch

struct SumArguments {
  Rows x;
  std::int64_t rows;
  const std::int32_t* bound;
  void* out;  // [columns], or for pieces [pieces, columns] fp32
  int columns, stripes, pieces;
  bool is_wide, out_is_wide, vector;  // wide: fp32
};

struct RowsArguments {
  SumArguments sums[kMaxSums];
  unsigned end_block[kMaxSums];  // end of this sum's blocks
  bool accumulate;
};

// Returns the sum of this block; `block` becomes the index among the sum's blocks.
__device__ inline const SumArguments& find_sum(const RowsArguments& a, int& block) {
  int found = 0;
  unsigned first = 0;
#pragma unroll
  for (int i = 0; i + 1 < kMaxSums; ++i) {
    if (blockIdx.x < a.end_block[i]) break;
    found = i + 1;
    first = a.end_block[i];
  }
  block = static_cast<int>(blockIdx.x - first);
  return a.sums[found];
}

// Calls visit(T{}, is_vector) with the dtype of x.
template <class Visit>
__device__ inline void visit_rows(const SumArguments& sum, const Visit& visit) {
  if (sum.is_wide) {
    sum.vector ? visit(float{}, std::true_type{}) : visit(float{}, std::false_type{});
  } else {
    sum.vector ? visit(bf16{}, std::true_type{}) : visit(bf16{}, std::false_type{});
  }
}

// Sums every kStep-th row from `row` on, in the pack of columns that begins at `first`.
template <class T, bool kVector, int kStep, int kInFlight>
__device__ inline Floats<T> sum_rows(const SumArguments& sum, int first, std::int64_t row, std::int64_t end) {
  Floats<T> total;
  for (; row < end; row += kStep * kInFlight) {
    uint4 raw[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const std::int64_t at = row + u * kStep;
      raw[u] = load_of_row<T, kVector>(sum.x.at<const T>(at), first, at < end ? sum.columns : 0);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) total += Floats<T>(raw[u]);
  }
  return total;
}

// Sums a stripe's columns over the block. Thread c, of the first threads, returns column c; `shared` is [warps][columns
// of a stripe].
template <class T, int kStripeLanes>
__device__ inline float add_threads(Floats<T>& sums, float* shared) {
  constexpr int kWidth = kPack<T>, kColumns = kStripeLanes * kWidth;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  if constexpr (kStripeLanes * kWidth <= 32) {
    constexpr int kHolders = 32 / kWidth;  // lanes that hold one element's sums
    const float total = spread_sum<kStripeLanes>(sums.x);
    if (lane % kHolders < kStripeLanes) {
      shared[thread / 32 * kColumns + lane % kStripeLanes * kWidth + lane / kHolders] = total;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      float total = sums[j];
#pragma unroll
      for (int step = 16; step >= kStripeLanes; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
      if (lane < kStripeLanes) shared[thread / 32 * kColumns + lane * kWidth + j] = total;
    }
  }
  __syncthreads();
  float total = 0;
  if (thread < kColumns) {
#pragma unroll
    for (int w = 0; w < kRowsThreads / 32; ++w) total += shared[w * kColumns + thread];
  }
  return total;
}

// One pass: a block owns a stripe of the columns of one sum.
__global__ void __launch_bounds__(kRowsThreads) reduce_rows_kernel(const __grid_constant__ RowsArguments a) {
  __shared__ float shared[kRowsThreads / 32 * kLanes * kPack<bf16>];
  int stripe = 0;
  const SumArguments& sum = find_sum(a, stripe);
  visit_rows(sum, [&](auto type, auto is_vector) {
    using T = decltype(type);
    constexpr int kWidth = kPack<T>, kStep = kRowsThreads / kLanes;
    constexpr bool kVector = decltype(is_vector)::value;
    const int thread = static_cast<int>(threadIdx.x);
    const int first = (stripe * kLanes + thread % kLanes) * kWidth, column = stripe * kLanes * kWidth + thread;
    const bool writes = thread < kLanes * kWidth && column < sum.columns;
    float* const wide = static_cast<float*>(sum.out) + column;
    bf16* const narrow_out = static_cast<bf16*>(sum.out) + column;
    float before = 0;  // read while the rows are in flight
    if (writes && a.accumulate) before = sum.out_is_wide ? *wide : widen(*narrow_out);
    const std::int64_t rows = sum.bound == nullptr ? sum.rows : *sum.bound;
    const int row = thread / kLanes;
    Floats<T> sums = rows <= 2 * kStep   ? sum_rows<T, kVector, kStep, 2>(sum, first, row, rows)
                     : rows <= 4 * kStep ? sum_rows<T, kVector, kStep, 4>(sum, first, row, rows)
                                         : sum_rows<T, kVector, kStep, kUnrolled>(sum, first, row, rows);
    float total = add_threads<T, kLanes>(sums, shared);
    if (!writes) return;
    if (a.accumulate) total += before;
    if (sum.out_is_wide) {
      *wide = total;
    } else {
      *narrow_out = narrow<bf16>(total);
    }
  });
}

// A block owns a stripe of the columns and a piece of the rows of one sum.
__global__ void __launch_bounds__(kRowsThreads) reduce_rows_pieces_kernel(const __grid_constant__ RowsArguments a) {
  __shared__ float shared[kRowsThreads / 32 * kWideLanes * kPack<bf16>];
  int block = 0;
  const SumArguments& sum = find_sum(a, block);
  const int stripe = block % sum.stripes, piece = block / sum.stripes;
  visit_rows(sum, [&](auto type, auto is_vector) {
    using T = decltype(type);
    constexpr int kWidth = kPack<T>, kStep = kRowsThreads / kWideLanes;
    const int thread = static_cast<int>(threadIdx.x);
    const int first = (stripe * kWideLanes + thread % kWideLanes) * kWidth;
    const int column = stripe * kWideLanes * kWidth + thread;
    const std::int64_t rows = sum.bound == nullptr ? sum.rows : *sum.bound;
    const std::int64_t begin = rows * piece / sum.pieces, end = rows * (piece + 1) / sum.pieces;
    Floats<T> sums =
        sum_rows<T, decltype(is_vector)::value, kStep, kUnrolled>(sum, first, begin + thread / kWideLanes, end);
    const float total = add_threads<T, kWideLanes>(sums, shared);
    if (thread >= kWideLanes * kWidth || column >= sum.columns) return;
    static_cast<float*>(sum.out)[static_cast<std::int64_t>(piece) * sum.columns + column] = total;
  });
}

// Gathers sums, and launches `kernel` for each kMaxSums and at the end.
class RowsLaunch {
 public:
  RowsLaunch(CudaStream& stream, void (*kernel)(RowsArguments), int lanes, bool accumulate)
      : stream_(stream), kernel_(kernel), lanes_(lanes) {
    arguments_.accumulate = accumulate;
  }

  void add(const Tensor& x, void* out, DType out_dtype, std::int64_t pieces) {
    require(x.size(1) < kMaxIndex / 2, "ReduceRows: more than 2^30 columns");
    const std::int64_t width = 16 / static_cast<std::int64_t>(size_of(x.dtype));
    const unsigned stripes = blocks_for(x.size(1), lanes_ * width);
    blocks_ += stripes * static_cast<unsigned>(pieces);
    arguments_.sums[count_] = {.x = Rows(x),
                               .rows = x.size(0),
                               .bound = x.bound,
                               .out = out,
                               .columns = static_cast<int>(x.size(1)),
                               .stripes = static_cast<int>(stripes),
                               .pieces = static_cast<int>(pieces),
                               .is_wide = x.dtype == DType::kFp32,
                               .out_is_wide = out_dtype == DType::kFp32,
                               .vector = rows_aligned(x)};
    std::fill(arguments_.end_block + count_, arguments_.end_block + kMaxSums, blocks_);
    if (++count_ == kMaxSums) launch();
  }
  void launch() {
    if (count_ > 0) launch_kernel(stream_, {blocks_, kRowsThreads}, kernel_, arguments_);
    count_ = 0;
    blocks_ = 0;
  }

 private:
  CudaStream& stream_;
  void (*kernel_)(RowsArguments);
  int lanes_;
  RowsArguments arguments_{};
  int count_ = 0;
  unsigned blocks_ = 0;
};

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
  RowsLaunch pieces(stream, reduce_rows_pieces_kernel, kWideLanes, false);
  float* partial = op.workspace.as<float>();
  for (const RowSum& sum : op.sums) {
    if (const std::int64_t count = pieces_of(sum.x); count > 0) pieces.add(sum.x, partial, DType::kFp32, count);
    partial += partial_floats(sum.x);
  }
  pieces.launch();
  RowsLaunch whole(stream, reduce_rows_kernel, kLanes, op.accumulate);
  partial = op.workspace.as<float>();
  for (const RowSum& sum : op.sums) {
    const std::int64_t count = pieces_of(sum.x);
    whole.add(count > 0 ? Tensor(partial, DType::kFp32, {count, sum.x.size(1)}) : sum.x, sum.out.data, sum.out.dtype,
              1);
    partial += partial_floats(sum.x);
  }
  whole.launch();
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

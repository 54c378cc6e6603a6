// Memory-bound. A thread finds its row's expert by a binary search in the offsets. Deterministic: dot products have a
// fixed tree, and sums over rows a fixed order.
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"
#include "moe/ops/cuda_experts.cuh"
#include "moe/ops/cuda_routes.cuh"
#include "moe/ops/grouped_bias.h"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;

// The last expert that begins at or ahead of a live row: the row's owner.
__device__ inline int expert_of(const RoutedExperts& offsets, std::int64_t row) {
  int low = 0, high = offsets.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets.before(middle) <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class T>
struct BiasArguments {
  RoutedExperts offsets;
  T* x;
  const T* bias;
  const float* row_weight;
  std::int64_t first, stride;
  unsigned items;
  int columns;
  FastDivide row_packs;
};

// A thread owns one pack of x.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads) grouped_bias_kernel(const BiasArguments<T> a) {
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= a.items) return;
  unsigned pack_of_row;
  const std::int64_t row = a.first + a.row_packs.divide(item, pack_of_row);
  if (row >= a.offsets.live()) return;
  const int begin = static_cast<int>(pack_of_row) * kPack<T>;
  const float weight = a.row_weight == nullptr ? 1.0f : a.row_weight[row];
  T* const to = a.x + row * a.stride;
  const T* const from = a.bias + std::int64_t{expert_of(a.offsets, row)} * a.columns;
  const Floats<T> x(load_of_row<T, kVector>(to, begin, a.columns));
  const Floats<T> bias(load_of_row<T, kVector>(from, begin, a.columns));
  const auto add = [weight](float v, float b) { return __fadd_rn(v, __fmul_rn(weight, b)); };
  store_of_row<T, kVector>(to, begin, a.columns, map(add, x, bias).packed());
}

// The routed rows of a gradient.
template <class T>
struct GradientRows {
  RoutedExperts offsets;
  const T* dy;
  const std::int32_t* index;
  const float* row_weight;
  std::int64_t stride, tokens;
  int columns;
  Faults faults;

  // The address of a live row; null if its index is out of range.
  __device__ const T* row(std::int64_t r) const {
    if (index == nullptr) return dy + r * stride;
    const std::int32_t token = load_route(index, r, 0, tokens, faults);
    return token < 0 ? nullptr : dy + token * stride;
  }
};

// A warp owns a row.
template <class T, bool kVector>
__global__ void __launch_bounds__(kThreads)
    grouped_bias_dot_kernel(const GradientRows<T> rows, const T* bias, float* partial, int parts) {
  const std::int64_t r = std::int64_t{blockIdx.x} * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (r >= rows.offsets.live()) return;
  const T* const dy = rows.row(r);
  if (dy == nullptr) return;
  const T* const b = bias + std::int64_t{expert_of(rows.offsets, r)} * rows.columns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
  for (int first = lane * kPack<T>; first < rows.columns; first += 32 * kPack<T>) {
    const Floats<T> d(load_of_row<T, kVector>(dy, first, rows.columns));
    const Floats<T> v(load_of_row<T, kVector>(b, first, rows.columns));
#pragma unroll
    for (int j = 0; j < kPack<T>; ++j) sum = __fadd_rn(sum, __fmul_rn(d[j], v[j]));
  }
  sum = warp_sum(sum);
  if (lane == 0) partial[r * parts] += sum;
}

// A block owns 32 packs of columns of an expert (blockIdx.y). A warp adds every eighth row of the expert, and the sums
// of the warps are added in order: rows are numbered within the expert, so a result depends on them alone.
template <class T, class Sum, bool kVector>
__global__ void __launch_bounds__(kThreads)
    grouped_bias_gradient_kernel(const GradientRows<T> rows, Sum* d_bias, bool accumulate) {
  constexpr int kWarps = kThreads / 32, kLoads = 4, kColumns = 32 * kPack<T>;
  __shared__ float sums[kWarps][kColumns];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int begin = static_cast<int>(blockIdx.x) * kColumns, own = begin + lane * kPack<T>;
  for (int expert = static_cast<int>(blockIdx.y); expert < rows.offsets.count; expert += static_cast<int>(gridDim.y)) {
    const int first = rows.offsets.before(expert), end = max(first, rows.offsets.before(expert + 1));
    if (accumulate && first == end) continue;
    Floats<T> sum;
    for (int r = first + warp; r < end; r += kWarps * kLoads) {
      uint4 loaded[kLoads];
      float weight[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const int row = r + u * kWarps;
        const T* const dy = row < end && own < rows.columns ? rows.row(row) : nullptr;
        loaded[u] = dy == nullptr ? make_uint4(0, 0, 0, 0) : load_of_row<T, kVector>(dy, own, rows.columns);
        weight[u] = rows.row_weight == nullptr || row >= end ? 1.0f : rows.row_weight[row];
      }
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        if (r + u * kWarps >= end) break;
        const Floats<T> dy(loaded[u]);
#pragma unroll
        for (int j = 0; j < kPack<T>; ++j) sum[j] = __fadd_rn(sum[j], __fmul_rn(weight[u], dy[j]));
      }
    }
    for (int j = 0; j < kPack<T>; ++j) sums[warp][lane * kPack<T> + j] = sum[j];
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < kColumns && begin + c < rows.columns; c += kThreads) {
      float total = sums[0][c];
      for (int w = 1; w < kWarps; ++w) total += sums[w][c];
      Sum* const to = d_bias + std::int64_t{expert} * rows.columns + begin + c;
      *to = narrow<Sum>(accumulate ? widen(*to) + total : total);
    }
    __syncthreads();
  }
}

RoutedExperts experts_of(const Tensor& offsets, std::int64_t rows) {
  const std::int64_t experts = offsets.size(0) - 1;
  require(rows < kMaxIndex && experts < kMaxIndex, "biases of experts: more than 2^31 rows");
  return {offsets.as<const std::int32_t>(), static_cast<int>(experts), static_cast<int>(rows)};
}

template <class T, class Op>
GradientRows<T> rows_of(CudaStream& stream, const Op& op, std::int64_t rows) {
  return {.offsets = experts_of(op.offsets, rows),
          .dy = op.dy.template as<const T>(),
          .index = op.index ? op.index.template as<const std::int32_t>() : nullptr,
          .row_weight = nullptr,
          .stride = op.dy.stride(0),
          .tokens = op.dy.size(0),
          .columns = row_length(op.dy),
          .faults = Faults(stream)};
}

}  // namespace

void run(CudaStream& stream, const GroupedBias& op) {
  const std::int64_t packs = packs_of(op.x), columns = row_length(op.x);
  for_pieces(op.x.size(0), packs, [&](std::int64_t first, std::int64_t rows) {
    const bool vector = rows_aligned(op.x) && starts_aligned(op.bias);
    Variants(op.x.dtype, vector).visit([&](auto type, auto is_vector) {
      using T = decltype(type);
      const BiasArguments<T> arguments{.offsets = experts_of(op.offsets, op.x.size(0)),
                                       .x = op.x.as<T>(),
                                       .bias = op.bias.as<const T>(),
                                       .row_weight = op.row_weight ? op.row_weight.as<const float>() : nullptr,
                                       .first = first,
                                       .stride = op.x.stride(0),
                                       .items = static_cast<unsigned>(rows * packs),
                                       .columns = static_cast<int>(columns),
                                       .row_packs = FastDivide(std::max<std::int64_t>(1, packs))};
      launch_kernel(stream, {blocks_for(arguments.items, kThreads), kThreads}, grouped_bias_kernel<T, is_vector()>,
                    arguments);
    });
  });
}

void run(CudaStream& stream, const GroupedBiasDot& op) {
  const std::int64_t rows = op.d_row_weight_partial.size(0);
  const bool vector = rows_aligned(op.dy) && starts_aligned(op.bias);
  Variants(op.dy.dtype, vector).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    launch_kernel(stream, {blocks_for(rows, kThreads / 32), kThreads}, grouped_bias_dot_kernel<T, is_vector()>,
                  rows_of<T>(stream, op, rows), op.bias.as<const T>(), op.d_row_weight_partial.as<float>(),
                  static_cast<int>(op.d_row_weight_partial.size(1)));
  });
}

void run(CudaStream& stream, const GroupedBiasGradient& op) {
  const std::int64_t rows = op.index ? op.index.size(0) : op.dy.size(0);
  Variants(op.dy.dtype, rows_aligned(op.dy)).visit([&](auto type, auto is_vector) {
    using T = decltype(type);
    GradientRows<T> gradient = rows_of<T>(stream, op, rows);
    if (op.row_weight) gradient.row_weight = op.row_weight.as<const float>();
    const auto experts = static_cast<unsigned>(std::min(gradient.offsets.count, 65535));
    const Grid grid{{blocks_for(gradient.columns, 32 * kPack<T>), experts}, kThreads};
    Variants(op.d_bias.dtype).visit([&](auto sum) {
      using Sum = decltype(sum);
      launch_kernel(stream, grid, grouped_bias_gradient_kernel<T, Sum, is_vector()>, gradient, op.d_bias.as<Sum>(),
                    op.accumulate);
    });
  });
}

}  // namespace megalith

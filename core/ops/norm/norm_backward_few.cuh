// Backward of the norms for few rows, bound by latency. Each row of a block's share has a dedicated group of threads,
// which loads all inputs at once into registers. dx has the bits of norm_backward_kernel, since the sums of a row use
// the same trees. The partial sums add a share's rows in ascending order.
#pragma once

#include "core/ops/norm/cuda_norm.cuh"

namespace megalith::cuda {

// Shared with norm_backward_kernel: computes kCount sums over the threads of a row. `shared` is [2][16 warps][kCount];
// `turn` alternates, so that one barrier is enough. If groups exceed a warp, all threads of the block must call it.
template <int kCount>
struct GroupSums {
  int group;
  float (*shared)[16][kCount];
  int turn = 0;

  __device__ void operator()(float (&x)[kCount]) {
    constexpr int kSpread = 32 / kCount;
    if (group < 32) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) x[c] = warp_sum(x[c], group);
      return;
    }
    float sum = spread_sum(x);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    if (group > 32) {
      const int warps = group / 32, first = warp / warps * warps;
      if (lane % kSpread == 0) shared[turn][warp][lane / kSpread] = sum;
      named_barrier_sync(kFirstGroupBarrier + first / warps, group);
      sum = 0;
      for (int w = lane / kCount; w < warps; w += kSpread) sum += shared[turn][first + w][lane % kCount];
#pragma unroll
      for (int step = 16; step >= kCount; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      turn ^= 1;
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c) x[c] = __shfl_sync(kAllLanes, sum, group > 32 ? c : c * kSpread);
  }
};

template <class T>
struct BackwardArguments {
  RowIndexer index;
  RowPointer<const T> dy, x, d_residual;
  RowPointer<T> dx, y;  // y: RMSNorm's, or absent
  const T* weight;
  const float *mean, *rstd;
  float *d_weight, *d_bias;  // [blocks, length]
  int length, group;
  float inverse_length, center;
};

inline constexpr int kFewThreads = kMaxGroup;  // threads of a block
inline constexpr std::int64_t kFewRows = 8;

// row[first ...] = sums, for a row of partial sums.
template <class T, bool kVector>
__device__ inline void store_sums(float* row, int first, int length, const Floats<T>& sums) {
#pragma unroll
  for (int j = 0; j < kPack<T>; j += kPack<float>) {
    Floats<float> four;
#pragma unroll
    for (int i = 0; i < kPack<float>; ++i) four[i] = sums[j + i];
    store_of_row<float, kVector>(row, first + j, length, four.packed());
  }
}

// out[i] = sum over the groups of shared[group][i], [groups][count] in shared memory.
template <bool kVector>
__device__ inline void add_shared_rows(const float* shared, int groups, int stride, int length, float* out) {
  constexpr int kWidth = kPack<float>;
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < length; i += static_cast<int>(blockDim.x) * kWidth) {
    Floats<float> total;
#pragma unroll 4
    for (int g = 0; g < groups; ++g)
      total += Floats<float>(load_of_row<float, kVector>(shared + g * stride, i, length));
    store_of_row<float, kVector>(out, i, length, total.packed());
  }
}

// A block owns a share of the rows, at most one per group. `sums` is [groups][1 or 2][length] if there are several.
template <class Op, class T, int kPacks, bool kVector>
__global__ void __launch_bounds__(kFewThreads) norm_backward_few_kernel(const BackwardArguments<T> a) {
  constexpr int kWidth = kPack<T>;
  constexpr bool kCentred = kIsLayerNorm<Op>;
  constexpr int kSums = kCentred ? 2 : 1;
  __shared__ float shared[2][kFewThreads / 32][kSums];
  extern __shared__ float4 sums_of_groups[];
  const int lane = static_cast<int>(threadIdx.x) % a.group, group = static_cast<int>(threadIdx.x) / a.group;
  const auto rows = static_cast<unsigned>(a.index.live());  // few rows: no overflow
  const unsigned row = rows * blockIdx.x / gridDim.x + static_cast<unsigned>(group);
  const int length = row < rows * (blockIdx.x + 1) / gridDim.x ? a.length : 0;
  const RowPlace place(a.index, length > 0 ? row : 0);

  uint4 raw_dy[kPacks], raw_x[kPacks], raw_weight[kPacks], raw_residual[kPacks];
  const int of_residual = a.d_residual.data != nullptr ? length : 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int first = (lane + k * a.group) * kWidth;
    raw_dy[k] = load_of_row<T, kVector>(a.dy.at(place), first, length);
    raw_x[k] = load_of_row<T, kVector>(a.x.at(place), first, length);
    raw_weight[k] = load_of_row<T, kVector>(a.weight, first, a.length);
    raw_residual[k] = load_of_row<T, kVector>(a.d_residual.at(place), first, of_residual);
  }
  const float mean = kCentred && length > 0 ? a.mean[row] : 0.0f, rstd = length > 0 ? a.rstd[row] : 0.0f;

  float total[kSums] = {};  // sums of g (x - mean) and g
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const Floats<T> d(raw_dy[k]), v(raw_x[k]), w = factors<T>(raw_weight[k], a.center);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float g = d[j] * w[j];
      total[0] = fmaf(g, kCentred ? v[j] - mean : v[j], total[0]);
      if constexpr (kCentred) total[1] = __fadd_rn(total[1], g);  // without FMA in both kernels
    }
  }
  GroupSums<kSums>{a.group, shared}(total);

  const float mean_gh = total[0] * rstd * a.inverse_length;
  const float mean_g = kCentred ? total[kSums - 1] * a.inverse_length : 0.0f;
  const int groups = static_cast<int>(blockDim.x) / a.group;
  const std::int64_t offset = static_cast<std::int64_t>(blockIdx.x) * a.length;
  auto* const sums = reinterpret_cast<float*>(sums_of_groups) + group * kSums * a.length;
  float* const d_weight = groups == 1 ? a.d_weight + offset : sums;
  float* const d_bias = groups == 1 ? a.d_bias + offset : sums + a.length;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int first = (lane + k * a.group) * kWidth;
    const Floats<T> d(raw_dy[k]), v(raw_x[k]), w = factors<T>(raw_weight[k], a.center);
    Floats<T> q(raw_residual[k]), d_weights;
    if (!kCentred && a.y.data != nullptr) {
      const Floats<T> y = map([&](float x, float scale) { return x * rstd * scale; }, v, w);
      store_of_row<T, kVector>(a.y.at(place), first, length, y.packed());
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float h = (kCentred ? v[j] - mean : v[j]) * rstd;
      const float centred = kCentred ? fmaf(d[j], w[j], -mean_g) : d[j] * w[j];
      q[j] = fmaf(fmaf(-h, mean_gh, centred), rstd, q[j]);
      d_weights[j] = d[j] * h;
    }
    store_of_row<T, kVector>(a.dx.at(place), first, length, q.packed());
    store_sums<T, kVector>(d_weight, first, a.length, d_weights);
    if constexpr (kCentred) store_sums<T, kVector>(d_bias, first, a.length, d);
  }
  if (groups == 1) return;
  __syncthreads();
  const auto* const all = reinterpret_cast<const float*>(sums_of_groups);
  add_shared_rows<kVector>(all, groups, kSums * a.length, a.length, a.d_weight + offset);
  if constexpr (kCentred)
    add_shared_rows<kVector>(all + a.length, groups, kSums * a.length, a.length, a.d_bias + offset);
}

// Launches the kernel and returns true if the rows are few enough. a.group is set.
template <class Op, int kPacks, bool kVector, class T>
bool launch_few(CudaStream& stream, unsigned blocks, const BackwardArguments<T>& a) {
  const std::int64_t share = std::max<std::int64_t>(1, ceil_divide(a.index.rows, blocks));
  const std::int64_t of_warp = std::max(1, 32 / a.group), groups = ceil_divide(share, of_warp) * of_warp;
  if (share > kFewRows || groups * a.group > kFewThreads) return false;
  constexpr auto kKernel = norm_backward_few_kernel<Op, T, kPacks, kVector>;
  constexpr int kSums = kIsLayerNorm<Op> ? 2 : 1;
  constexpr int kMaxShared = static_cast<int>(sizeof(float)) * kFewThreads * kPacks * kPack<T> * kSums;
  if (kMaxShared > stream.dynamic_shared_memory_of_block()) return false;
  allow_shared_memory<kKernel>(kMaxShared);
  const std::size_t shared = groups == 1 ? 0 : sizeof(float) * static_cast<std::size_t>(groups * kSums * a.length);
  launch_kernel(stream, {blocks, static_cast<unsigned>(groups * a.group), shared}, kKernel, a);
  return true;
}

}  // namespace megalith::cuda

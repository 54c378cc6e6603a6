// Memory-bound. Forward: one row per group of threads, read once, kept in registers, written once. Backward: dy, x and
// d_residual are read once, a few rows ahead into shared memory, and dx is written once; each block walks a fixed share
// of the rows and keeps its sum of the weight gradient in registers; a second kernel adds the shares of each of the
// kNormPartials rows in order.
// Deterministic: fixed trees over lanes, warps, groups and shares, whatever the alignment and the device.
#include "core/ops/cuda_norm.cuh"
#include "core/ops/norm.h"

namespace megalith {

namespace {

using namespace cuda;

// Blocks of the backward for each partial row: two in all for each of 132 multiprocessors. Fewer where their sums would
// not fit into the scratch memory.
constexpr int kSharesPerPartial = 33;

template <class T>
struct ForwardArguments {
  RowIndexer index;
  RowPointer<const T> x, residual;
  RowPointer<T> sum, y;
  const T *weight, *bias;
  float *mean, *rstd;
  int length, group;
  float eps;
};

// A block owns blockDim.x / group rows.
template <class T, int kPacks, bool kVector, bool kCentred>
__global__ void __launch_bounds__(kPacks % 2 == 1 || kPacks == 8 ? kNormThreads : kMaxGroup) normalise(const ForwardArguments<T> a) {
  constexpr int kWidth = kPack<T>;
  __shared__ float shared[2][16][1];
  GroupSum<1> sum_group{a.group, shared};
  const int lane = static_cast<int>(threadIdx.x) % a.group;
  const int groups = static_cast<int>(blockDim.x) / a.group;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x / a.group;
  const int length = row < a.index.live() ? a.length : 0;  // of rows that are none: as if empty
  const RowPlace place(a.index, static_cast<unsigned>(length > 0 ? row : 0));
  const float inverse_length = 1.0f / static_cast<float>(a.length);

  uint4 raw[kPacks], added[kPacks];
  const T* x = a.x.at(place);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) raw[k] = load_of_row<T, kVector>(x, (lane + k * a.group) * kWidth, length);
  if (a.residual.data != nullptr) {
    const T* residual = a.residual.at(place);
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      added[k] = load_of_row<T, kVector>(residual, (lane + k * a.group) * kWidth, length);
    T* sum = a.sum.at(place);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      float v[kWidth], r[kWidth];
      unpack<T>(raw[k], v);
      unpack<T>(added[k], r);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) v[j] += r[j];
      raw[k] = pack<T>(v);
      store_of_row<T, kVector>(sum, (lane + k * a.group) * kWidth, length, raw[k]);
    }
  }

  float total[1] = {0};
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    float v[kWidth];
    unpack<T>(raw[k], v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total[0] = kCentred ? total[0] + v[j] : fmaf(v[j], v[j], total[0]);
  }
  sum_group(total);
  forget_unpacked(raw);
  float mean = 0;
  if constexpr (kCentred) {
    mean = total[0] * inverse_length;
    total[0] = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      float v[kWidth];
      unpack<T>(raw[k], v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const bool inside = (lane + k * a.group) * kWidth + (kVector ? 0 : j) < length;
        const float d = inside ? v[j] - mean : 0.0f;
        total[0] = fmaf(d, d, total[0]);
      }
    }
    sum_group(total);
    forget_unpacked(raw);
  }
  const float rstd = 1.0f / sqrtf(total[0] * inverse_length + a.eps);
  if (lane == 0 && length > 0) {
    a.rstd[row] = rstd;
    if constexpr (kCentred) a.mean[row] = mean;
  }

  T* y = a.y.at(place);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int first = (lane + k * a.group) * kWidth;
    float v[kWidth], w[kWidth], b[kWidth];
    unpack<T>(raw[k], v);
    unpack<T>(load_of_row<T, kVector>(a.weight, first, length), w);
    if constexpr (kCentred) unpack<T>(load_of_row<T, kVector>(a.bias, first, length), b);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] = kCentred ? fmaf((v[j] - mean) * rstd, w[j], b[j]) : v[j] * rstd * w[j];
    store_of_row<T, kVector>(y, first, length, pack<T>(v));
  }
}

// Rows of any length: a block owns one, reads it three times (the later times from cache), element by element.
template <class T, bool kCentred>
__global__ void __launch_bounds__(kMaxGroup) normalise_long(const ForwardArguments<T> a) {
  __shared__ float shared[32];
  const std::int64_t row = blockIdx.x;
  if (row >= a.index.live()) return;
  const RowPlace place(a.index, static_cast<unsigned>(row));
  const T* x = a.x.at(place);
  float total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.length; i += static_cast<int>(blockDim.x)) {
    float v = widen(x[i]);
    if (a.residual.data != nullptr) {
      const T stored = narrow<T>(v + widen(a.residual.at(place)[i]));
      a.sum.at(place)[i] = stored;
      v = widen(stored);
    }
    total = kCentred ? total + v : fmaf(v, v, total);
  }
  const T* input = a.residual.data != nullptr ? a.sum.at(place) : x;  // each thread reads what it wrote
  total = block_sum(total, shared);
  float mean = 0;
  if constexpr (kCentred) {
    mean = total / static_cast<float>(a.length);
    total = 0;
    for (int i = static_cast<int>(threadIdx.x); i < a.length; i += static_cast<int>(blockDim.x)) {
      const float d = widen(input[i]) - mean;
      total = fmaf(d, d, total);
    }
    total = block_sum(total, shared);
  }
  const float rstd = 1.0f / sqrtf(total / static_cast<float>(a.length) + a.eps);
  if (threadIdx.x == 0) {
    a.rstd[row] = rstd;
    if constexpr (kCentred) a.mean[row] = mean;
  }
  T* y = a.y.at(place);
  for (int i = static_cast<int>(threadIdx.x); i < a.length; i += static_cast<int>(blockDim.x)) {
    const float h = (widen(input[i]) - mean) * rstd;
    y[i] = narrow<T>(kCentred ? fmaf(h, widen(a.weight[i]), widen(a.bias[i])) : h * widen(a.weight[i]));
  }
}

template <class T>
struct BackwardArguments {
  RowIndexer index;
  RowPointer<const T> dy, x, d_residual;
  RowPointer<T> dx;
  const T* weight;
  const float *mean, *rstd;
  float *d_weight, *d_bias;  // [kNormPartials * shares, length] scratch
  int length, group, shares;
};

// Share s of partial row p covers a fixed piece of the p-th eighth of the rows.
struct Share {
  std::int64_t begin, end;
  __device__ Share(std::int64_t rows, unsigned shares) {
    const std::int64_t part = blockIdx.x / shares, share = blockIdx.x % shares;
    const std::int64_t first = rows * part / kNormPartials, last = rows * (part + 1) / kNormPartials;
    begin = first + (last - first) * share / shares;
    end = first + (last - first) * (share + 1) / shares;
  }
};

// Adds the groups' sums in order: out[i] for the elements of a row. `shared` is [groups][length].
template <class T, int kPacks>
__device__ void add_groups(const float (&sums)[kPacks][kPack<T>], const BackwardArguments<T>& a, float* shared,
                           float* out) {
  constexpr int kWidth = kPack<T>;
  const int lane = static_cast<int>(threadIdx.x) % a.group, group = static_cast<int>(threadIdx.x) / a.group;
  const int groups = static_cast<int>(blockDim.x) / a.group;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const int i = (lane + k * a.group) * kWidth + j;
      if (i < a.length) shared[group * a.length + i] = sums[k][j];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < a.length; i += static_cast<int>(blockDim.x)) {
    float total = shared[i];
    for (int g = 1; g < groups; ++g) total += shared[g * a.length + i];
    out[i] = total;
  }
}

// Rows in flight per group, the one at work included: as many as two blocks' shared memory holds.
template <int kPacks>
constexpr int kStages = kPacks == 1 ? 4 : kPacks == 2 ? 3 : 2;

// A block owns a share of the rows; its groups take turns at them. `stages` is [kStages][3 or 2 tensors][kPacks][threads],
// and at the end the groups' sums [groups][length].
template <class T, int kPacks, bool kVector, bool kCentred>
__global__ void __launch_bounds__(kPacks % 2 == 1 ? kNormThreads : kMaxGroup, kPacks % 2 == 1 ? 2 : 1)
    differentiate(const BackwardArguments<T> a) {
  constexpr int kWidth = kPack<T>, kDepth = kStages<kPacks>;
  __shared__ float shared[2][16][2];
  extern __shared__ uint4 stages[];
  GroupSum<2> sum_group{a.group, shared};
  const int lane = static_cast<int>(threadIdx.x) % a.group;
  const int groups = static_cast<int>(blockDim.x) / a.group;
  const float inverse_length = 1.0f / static_cast<float>(a.length);
  const Share share(a.index.live(), static_cast<unsigned>(a.shares));
  const bool has_residual = a.d_residual.data != nullptr;

  const auto slot = [&](std::int64_t turn, int tensor, int k) {
    return stages + ((turn % kDepth * 3 + tensor) * kPacks + k) * blockDim.x + threadIdx.x;
  };
  struct Ahead {
    float mean, rstd;
  };
  // Row number `turn` of the group; beyond its last one nothing.
  const auto fetch = [&](std::int64_t turn) {
    const std::int64_t row = share.begin + turn * groups + threadIdx.x / a.group;
    const int length = row < share.end ? a.length : 0;
    const RowPlace place(a.index, static_cast<unsigned>(length > 0 ? row : 0));
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int first = (lane + k * a.group) * kWidth;
      stage_of_row<T, kVector>(slot(turn, 0, k), a.dy.at(place), first, length);
      stage_of_row<T, kVector>(slot(turn, 1, k), a.x.at(place), first, length);
      if (has_residual) stage_of_row<T, kVector>(slot(turn, 2, k), a.d_residual.at(place), first, length);
    }
    commit_stage();
    return Ahead{kCentred && length > 0 ? a.mean[row] : 0.0f, length > 0 ? a.rstd[row] : 0.0f};
  };

  uint4 weight[kPacks];
  float d_weight[kPacks][kWidth] = {}, d_bias[kPacks][kWidth] = {};
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    weight[k] = load_of_row<T, kVector>(a.weight, (lane + k * a.group) * kWidth, a.length);
  }
  Ahead statistics[kDepth];  // of the rows in flight
#pragma unroll
  for (int d = 0; d + 1 < kDepth; ++d) statistics[d + 1] = fetch(d);
  const std::int64_t turns = (share.end - share.begin + groups - 1) / groups;
  for (std::int64_t turn = 0; turn < turns; ++turn) {
#pragma unroll
    for (int d = 0; d + 1 < kDepth; ++d) statistics[d] = statistics[d + 1];
    statistics[kDepth - 1] = fetch(turn + kDepth - 1);
    wait_for_stages<kDepth - 1>();
    const float mean = statistics[0].mean, rstd = statistics[0].rstd;

    float total[2] = {0, 0};  // of g (x - mean) and of g
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      float d[kWidth], v[kWidth], w[kWidth];
      unpack<T>(*slot(turn, 0, k), d);
      unpack<T>(*slot(turn, 1, k), v);
      unpack<T>(weight[k], w);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float g = d[j] * w[j];
        total[0] = fmaf(g, kCentred ? v[j] - mean : v[j], total[0]);
        if constexpr (kCentred) total[1] += g;
      }
    }
    sum_group(total);
    forget_unpacked(weight);
    const float mean_gh = total[0] * rstd * inverse_length, mean_g = total[1] * inverse_length;

    const std::int64_t row = share.begin + turn * groups + threadIdx.x / a.group;
    const int length = row < share.end ? a.length : 0;
    T* dx = a.dx.at(RowPlace(a.index, static_cast<unsigned>(length > 0 ? row : 0)));
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      float d[kWidth], v[kWidth], w[kWidth], r[kWidth] = {};
      unpack<T>(*slot(turn, 0, k), d);
      unpack<T>(*slot(turn, 1, k), v);
      unpack<T>(weight[k], w);
      if (has_residual) unpack<T>(*slot(turn, 2, k), r);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float h = (kCentred ? v[j] - mean : v[j]) * rstd;
        const float centred = kCentred ? fmaf(d[j], w[j], -mean_g) : d[j] * w[j];
        r[j] = fmaf(fmaf(-h, mean_gh, centred), rstd, r[j]);
        d_weight[k][j] = fmaf(d[j], h, d_weight[k][j]);
        if constexpr (kCentred) d_bias[k][j] += d[j];
      }
      store_of_row<T, kVector>(dx, (lane + k * a.group) * kWidth, length, pack<T>(r));
    }
  }
  wait_for_stages<0>();
  auto* sums = reinterpret_cast<float*>(stages);
  const std::int64_t offset = static_cast<std::int64_t>(blockIdx.x) * a.length;
  add_groups<T, kPacks>(d_weight, a, sums, a.d_weight + offset);
  if constexpr (kCentred) add_groups<T, kPacks>(d_bias, a, sums, a.d_bias + offset);
}

template <class T, int kPacks, bool kVector, bool kCentred>
void launch_differentiate(CudaStream& stream, const RowTiling& tiling, const BackwardArguments<T>& a) {
  constexpr std::size_t kMost = sizeof(uint4) * 3 * kPacks * kStages<kPacks> * (kPacks % 2 == 1 ? kNormThreads : kMaxGroup);
  const auto kernel = differentiate<T, kPacks, kVector, kCentred>;
  // A property of the kernel, the same for every launch.
  static const cudaError_t raised =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kMost));
  MEGALITH_CUDA_CHECK(raised);
  const auto threads = static_cast<std::size_t>(tiling.group * tiling.groups);
  const std::size_t stages = sizeof(uint4) * 3 * kPacks * kStages<kPacks> * threads;
  const std::size_t sums = sizeof(float) * static_cast<std::size_t>(tiling.groups) * static_cast<std::size_t>(a.length);
  kernel<<<static_cast<unsigned>(kNormPartials * a.shares), static_cast<unsigned>(threads), std::max(stages, sums),
           stream.handle()>>>(a);
}

// Rows of any length: a block owns a share of the rows and its row of partial sums in memory.
template <class T, bool kCentred>
__global__ void __launch_bounds__(kMaxGroup) differentiate_long(const BackwardArguments<T> a) {
  __shared__ float shared[32];
  const Share share(a.index.live(), static_cast<unsigned>(a.shares));
  const std::int64_t offset = static_cast<std::int64_t>(blockIdx.x) * a.length;
  const int begin = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  for (int i = begin; i < a.length; i += step) {
    a.d_weight[offset + i] = 0;
    if constexpr (kCentred) a.d_bias[offset + i] = 0;
  }
  for (std::int64_t row = share.begin; row < share.end; ++row) {
    const RowPlace place(a.index, static_cast<unsigned>(row));
    const T *dy = a.dy.at(place), *x = a.x.at(place);
    const float rstd = a.rstd[row], mean = kCentred ? a.mean[row] : 0.0f;
    float total = 0, total_g = 0;
    for (int i = begin; i < a.length; i += step) {
      const float g = widen(dy[i]) * widen(a.weight[i]);
      total = fmaf(g, (widen(x[i]) - mean) * rstd, total);
      total_g += g;
    }
    const float mean_gh = block_sum(total, shared) / static_cast<float>(a.length);
    const float mean_g = kCentred ? block_sum(total_g, shared) / static_cast<float>(a.length) : 0.0f;
    for (int i = begin; i < a.length; i += step) {
      const float d = widen(dy[i]), h = (widen(x[i]) - mean) * rstd;
      float v = fmaf(-h, mean_gh, fmaf(d, widen(a.weight[i]), -mean_g)) * rstd;
      if (a.d_residual.data != nullptr) v += widen(a.d_residual.at(place)[i]);
      a.dx.at(place)[i] = narrow<T>(v);
      a.d_weight[offset + i] = fmaf(d, h, a.d_weight[offset + i]);
      if constexpr (kCentred) a.d_bias[offset + i] += d;
    }
  }
}

struct PartialArguments {
  const float *weight_shares, *bias_shares;  // [kNormPartials * shares, length]
  float *weight_partial, *bias_partial;      // [kNormPartials, length]
  int length, shares;
};

// A block owns 64 columns of one partial row; four threads add to a column, in a fixed order.
__global__ void __launch_bounds__(256) add_shares(const PartialArguments a) {
  __shared__ float shared[4][64];
  const int column = static_cast<int>(blockIdx.x) * 64 + static_cast<int>(threadIdx.x) % 64;
  const int quarter = static_cast<int>(threadIdx.x) / 64, part = static_cast<int>(blockIdx.y);
  const bool of_bias = blockIdx.z == 1;
  const float* shares = (of_bias ? a.bias_shares : a.weight_shares) + std::int64_t{part} * a.shares * a.length;
  float total = 0;
  if (column < a.length) {
#pragma unroll
    for (int k = 0; k < (kSharesPerPartial + 3) / 4; ++k) {
      const int s = quarter + 4 * k;
      if (s < a.shares) total += shares[static_cast<std::int64_t>(s) * a.length + column];
    }
  }
  shared[quarter][threadIdx.x % 64] = total;
  __syncthreads();
  if (quarter > 0 || column >= a.length) return;
  const int i = static_cast<int>(threadIdx.x);
  (of_bias ? a.bias_partial : a.weight_partial)[std::int64_t{part} * a.length + column] =
      (shared[0][i] + shared[1][i]) + (shared[2][i] + shared[3][i]);
}

int row_length(const Tensor& x) {
  require(x.size(-1) < kMaxIndex / 2, "a norm over more than 2^30 elements");
  return static_cast<int>(x.size(-1));
}

template <bool kCentred, class Op>
void launch_forward(CudaStream& stream, const Op& op, const Tensor& bias, const Tensor& mean) {
  visit_float(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    ForwardArguments<T> a{.index = RowIndexer(op.x),
                          .x = RowPointer<const T>(op.x),
                          .residual = RowPointer<const T>(op.residual),
                          .sum = RowPointer<T>(op.sum),
                          .y = RowPointer<T>(op.y),
                          .weight = op.weight.template as<const T>(),
                          .bias = bias.as<const T>(),
                          .mean = mean.as<float>(),
                          .rstd = op.rstd.template as<float>(),
                          .length = row_length(op.x),
                          .eps = op.eps};
    const std::int64_t packs = ceil_divide(a.length, kPack<T>);
    if (packs > kMaxRowPacks) {
      normalise_long<T, kCentred><<<blocks_for(a.index.rows, 1), kMaxGroup, 0, stream.handle()>>>(a);
      return;
    }
    const bool vector = rows_aligned(op.x) && rows_aligned(op.residual) && rows_aligned(op.sum) && rows_aligned(op.y) &&
                        rows_aligned(op.weight) && rows_aligned(bias);
    const RowTiling tiling = tile_rows(packs, 256, vector);
    a.group = tiling.group;
    const unsigned blocks = blocks_for(a.index.rows, tiling.groups);
    const auto threads = static_cast<unsigned>(tiling.group * tiling.groups);
    visit_packs(tiling.packs, [&](auto count) {
      if (vector) {
        normalise<T, count(), true, kCentred><<<blocks, threads, 0, stream.handle()>>>(a);
      } else {
        normalise<T, count(), false, kCentred><<<blocks, threads, 0, stream.handle()>>>(a);
      }
    });
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

template <bool kCentred, class Op>
void launch_backward(CudaStream& stream, const Op& op, const Tensor& mean, const Tensor& d_bias) {
  const int length = row_length(op.x);
  const std::int64_t row_bytes = std::int64_t{sizeof(float)} * length * (kCentred ? 2 : 1);
  const std::int64_t room = static_cast<std::int64_t>(CudaStream::kBlasWorkspaceBytes) / row_bytes;
  const auto shares_of_partial = std::clamp<std::int64_t>(room / kNormPartials, 1, kSharesPerPartial);
  float* shares = scratch<float>(stream, kNormPartials * shares_of_partial * row_bytes / 4);
  float* bias_shares = kCentred ? shares + kNormPartials * shares_of_partial * length : nullptr;
  visit_float(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    BackwardArguments<T> a{.index = RowIndexer(op.x),
                           .dy = RowPointer<const T>(op.dy),
                           .x = RowPointer<const T>(op.x),
                           .d_residual = RowPointer<const T>(op.d_residual),
                           .dx = RowPointer<T>(op.dx),
                           .weight = op.weight.template as<const T>(),
                           .mean = mean.as<const float>(),
                           .rstd = op.rstd.template as<const float>(),
                           .d_weight = shares,
                           .d_bias = bias_shares,
                           .length = length,
                           .shares = static_cast<int>(shares_of_partial)};
    const std::int64_t packs = ceil_divide(a.length, kPack<T>);
    if (packs > kMaxRowPacks) {
      differentiate_long<T, kCentred>
          <<<static_cast<unsigned>(kNormPartials * a.shares), kMaxGroup, 0, stream.handle()>>>(a);
      return;
    }
    const bool vector = rows_aligned(op.x) && rows_aligned(op.dy) && rows_aligned(op.d_residual) &&
                        rows_aligned(op.dx) && rows_aligned(op.weight);
    const RowTiling tiling = tile_rows(packs, 96, vector);
    a.group = tiling.group;
    visit_packs(tiling.packs, [&](auto count) {
      if constexpr (count() <= 4) {
        if (vector) {
          launch_differentiate<T, count(), true, kCentred>(stream, tiling, a);
        } else {
          launch_differentiate<T, count(), false, kCentred>(stream, tiling, a);
        }
      }
    });
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
  const PartialArguments partials{.weight_shares = shares,
                                  .bias_shares = bias_shares,
                                  .weight_partial = op.d_weight_partial.template as<float>(),
                                  .bias_partial = d_bias.as<float>(),
                                  .length = length,
                                  .shares = static_cast<int>(shares_of_partial)};
  const dim3 grid(blocks_for(length, 64), kNormPartials, kCentred ? 2 : 1);
  add_shares<<<grid, 256, 0, stream.handle()>>>(partials);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void run(CudaStream& stream, const RmsNormForward& op) { launch_forward<false>(stream, op, {}, {}); }

void run(CudaStream& stream, const RmsNormBackward& op) { launch_backward<false>(stream, op, {}, {}); }

void run(CudaStream& stream, const LayerNormForward& op) { launch_forward<true>(stream, op, op.bias, op.mean); }

void run(CudaStream& stream, const LayerNormBackward& op) {
  launch_backward<true>(stream, op, op.mean, op.d_bias_partial);
}

}  // namespace megalith

// Memory-bound. Forward: one row per group of threads, read once, kept in registers, written once. Backward: dy, x and
// d_residual are read once, a few rows ahead into shared memory, and dx is written once; each block walks a fixed share
// of the rows and keeps its sum of the weight gradient, a row of the partial ones, in registers.
// Deterministic: fixed trees over lanes, warps and groups, whatever the alignment and the device.
#include "core/ops/cuda_norm.cuh"
#include "core/ops/norm.h"

namespace megalith {

namespace {

using namespace cuda;

template <class T>
struct ForwardArguments {
  RowIndexer index;
  RowPointer<const T> x, residual;
  RowPointer<T> sum, y;
  const T *weight, *bias;
  float *mean, *rstd;
  int length, group;
  float inverse_length, eps;
};

// A block owns blockDim.x / group rows.
template <class T, int kPacks, bool kVector, bool kCentred>
__global__ void __launch_bounds__(kPacks == 4 ? kMaxGroup : kNormThreads) normalise(const ForwardArguments<T> a) {
  constexpr int kWidth = kPack<T>;
  __shared__ float shared[2][16];
  GroupSum sum_group{a.group, shared};
  const int lane = static_cast<int>(threadIdx.x) % a.group;
  const int groups = static_cast<int>(blockDim.x) / a.group;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x / a.group;
  const int length = row < a.index.live() ? a.length : 0;  // of rows that are none: as if empty
  const RowPlace place(a.index, static_cast<unsigned>(length > 0 ? row : 0));

  // Without a residual -0 is added, which changes nothing. There is no branch, so that all loads stay together.
  const bool has_residual = a.residual.data != nullptr;
  const int also = has_residual ? length : 0;
  const unsigned absent = has_residual ? 0u : sizeof(T) == 2 ? 0x80008000u : 0x80000000u;
  uint4 raw[kPacks], added[kPacks];
  const T *x = a.x.at(place), *residual = a.residual.at(place);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) raw[k] = load_of_row<T, kVector>(x, (lane + k * a.group) * kWidth, length);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) added[k] = load_of_row<T, kVector>(residual, (lane + k * a.group) * kWidth, also);
  T* sum = a.sum.at(place);
  float total = 0;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    float v[kWidth], r[kWidth];
    unpack<T>(raw[k], v);
    unpack<T>(make_uint4(added[k].x | absent, added[k].y | absent, added[k].z | absent, added[k].w | absent), r);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) v[j] += r[j];
    raw[k] = pack<T>(v);
    store_of_row<T, kVector>(sum, (lane + k * a.group) * kWidth, also, raw[k]);
    unpack<T>(raw[k], v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total = kCentred ? total + v[j] : fmaf(v[j], v[j], total);
  }
  sum_group(total);
  forget_unpacked(raw);
  float mean = 0;
  if constexpr (kCentred) {
    mean = total * a.inverse_length;
    total = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      float v[kWidth];
      unpack<T>(raw[k], v);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const bool inside = (lane + k * a.group) * kWidth + (kVector ? 0 : j) < length;
        const float d = inside ? v[j] - mean : 0.0f;
        total = fmaf(d, d, total);
      }
    }
    sum_group(total);
    forget_unpacked(raw);
  }
  const float rstd = 1.0f / sqrtf(total * a.inverse_length + a.eps);
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
  RowPointer<T> dx, y;  // y: of RMSNorm, or absent
  const T* weight;
  const float *mean, *rstd;
  float *d_weight, *d_bias;  // [blocks, length]
  int length, group;
  float inverse_length;
};

// A block's rows.
struct Share {
  std::int64_t begin, end;
  __device__ explicit Share(std::int64_t rows)
      : begin(rows * blockIdx.x / gridDim.x), end(rows * (blockIdx.x + 1) / gridDim.x) {}
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

constexpr int kDepth = 2;  // turns in flight, the one at work included

// How rows are shared out in the backward: kRows at a time to a group, so that their sums share barriers; several
// groups a block; such that two blocks have room on a multiprocessor.
template <int kPacks_, int kRows_, int kThreads_, int kBlocks_>
struct BackwardTiling {
  static constexpr int kPacks = kPacks_, kRows = kRows_, kThreads = kThreads_, kBlocks = kBlocks_;
  static constexpr std::size_t kSharedOfThread = sizeof(uint4) * kDepth * kRows * 3 * kPacks;
  static constexpr std::size_t kShared = kSharedOfThread * kThreads;

  static int group(std::int64_t row_packs) {
    int group = static_cast<int>(ceil_divide(row_packs, 32 * kPacks) * 32);
    while (kPacks == 1 && group <= 32 && group / 2 >= row_packs && group > 1) group /= 2;
    return group;
  }
};

template <class Visit>
void visit_backward_tiling(std::int64_t row_packs, Visit&& visit) {
  if (row_packs <= 96) return visit(BackwardTiling<1, 4, 192, 2>());
  if (row_packs <= 128 || (row_packs > 192 && row_packs <= 256)) return visit(BackwardTiling<2, 4, 128, 2>());
  if (row_packs <= 512) return visit(BackwardTiling<2, 2, 256, 2>());
  return visit(BackwardTiling<4, 1, kMaxGroup, 1>());
}

// A block owns a share of the rows; its groups take turns at them. `stages` is [kDepth][kRows][3 or 2
// tensors][kPacks][threads], and at the end the groups' sums [groups][length].
template <class T, class Tiling, bool kVector, bool kCentred>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks) differentiate(const BackwardArguments<T> a) {
  constexpr int kWidth = kPack<T>, kPacks = Tiling::kPacks, kRows = Tiling::kRows;
  constexpr int kSums = kCentred ? 2 : 1;
  __shared__ float shared[2][16][kRows * kSums];
  extern __shared__ uint4 stages[];
  GroupSums<kRows * kSums> sum_group{a.group, shared};
  const int lane = static_cast<int>(threadIdx.x) % a.group;
  const int groups = static_cast<int>(blockDim.x) / a.group, group = static_cast<int>(threadIdx.x) / a.group;
  const Share share(a.index.live());
  const bool has_residual = a.d_residual.data != nullptr;

  const auto slot = [&](std::int64_t turn, int r, int tensor, int k) {
    return stages + (((turn % kDepth * kRows + r) * 3 + tensor) * kPacks + k) * blockDim.x + threadIdx.x;
  };
  const auto row_of = [&](std::int64_t turn, int r) { return share.begin + (turn * groups + group) * kRows + r; };
  struct Ahead {
    float mean[kRows], rstd[kRows];
  };
  // The group's rows of a turn; beyond its last one nothing.
  const auto fetch = [&](std::int64_t turn) {
    Ahead ahead;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = row_of(turn, r);
      const int length = row < share.end ? a.length : 0;
      const RowPlace place(a.index, static_cast<unsigned>(length > 0 ? row : 0));
      const T *dy = a.dy.at(place), *x = a.x.at(place), *d_residual = a.d_residual.at(place);
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const int first = (lane + k * a.group) * kWidth;
        stage_of_row<T, kVector>(slot(turn, r, 0, k), dy, first, length);
        stage_of_row<T, kVector>(slot(turn, r, 1, k), x, first, length);
        if (has_residual) stage_of_row<T, kVector>(slot(turn, r, 2, k), d_residual, first, length);
      }
      ahead.mean[r] = kCentred && length > 0 ? a.mean[row] : 0.0f;
      ahead.rstd[r] = length > 0 ? a.rstd[row] : 0.0f;
    }
    commit_stage();
    return ahead;
  };

  uint4 weight[kPacks];
  float d_weight[kPacks][kWidth] = {}, d_bias[kPacks][kWidth] = {};
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    weight[k] = load_of_row<T, kVector>(a.weight, (lane + k * a.group) * kWidth, a.length);
  }
  Ahead next = fetch(0);
  const std::int64_t turns = (share.end - share.begin + groups * kRows - 1) / (groups * kRows);
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    const Ahead now = next;
    next = fetch(turn + 1);
    wait_for_stages<kDepth - 1>();

    float total[kRows * kSums] = {};  // of each row's g (x - mean) and g
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        float d[kWidth], v[kWidth], w[kWidth];
        unpack<T>(*slot(turn, r, 0, k), d);
        unpack<T>(*slot(turn, r, 1, k), v);
        unpack<T>(weight[k], w);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float g = d[j] * w[j];
          total[r * kSums] = fmaf(g, kCentred ? v[j] - now.mean[r] : v[j], total[r * kSums]);
          if constexpr (kCentred) total[r * kSums + 1] += g;
        }
      }
    }
    sum_group(total);
    forget_unpacked(weight);

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float mean = now.mean[r], rstd = now.rstd[r];
      const float mean_gh = total[r * kSums] * rstd * a.inverse_length;
      const float mean_g = kCentred ? total[r * kSums + kSums - 1] * a.inverse_length : 0.0f;
      const std::int64_t row = row_of(turn, r);
      const int length = row < share.end ? a.length : 0;
      const RowPlace place(a.index, static_cast<unsigned>(length > 0 ? row : 0));
      T* dx = a.dx.at(place);
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        float d[kWidth], v[kWidth], w[kWidth], q[kWidth] = {};
        unpack<T>(*slot(turn, r, 0, k), d);
        unpack<T>(*slot(turn, r, 1, k), v);
        unpack<T>(weight[k], w);
        if (has_residual) unpack<T>(*slot(turn, r, 2, k), q);
        if constexpr (!kCentred) {
          if (a.y.data != nullptr) {
            float y[kWidth];
#pragma unroll
            for (int j = 0; j < kWidth; ++j) y[j] = v[j] * rstd * w[j];
            store_of_row<T, kVector>(a.y.at(place), (lane + k * a.group) * kWidth, length, pack<T>(y));
          }
        }
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float h = (kCentred ? v[j] - mean : v[j]) * rstd;
          const float centred = kCentred ? fmaf(d[j], w[j], -mean_g) : d[j] * w[j];
          q[j] = fmaf(fmaf(-h, mean_gh, centred), rstd, q[j]);
          d_weight[k][j] = fmaf(d[j], h, d_weight[k][j]);
          if constexpr (kCentred) d_bias[k][j] += d[j];
        }
        store_of_row<T, kVector>(dx, (lane + k * a.group) * kWidth, length, pack<T>(q));
      }
      forget_unpacked(weight);
    }
  }
  wait_for_stages<0>();
  auto* sums = reinterpret_cast<float*>(stages);
  const std::int64_t offset = static_cast<std::int64_t>(blockIdx.x) * a.length;
  add_groups<T, kPacks>(d_weight, a, sums, a.d_weight + offset);
  if constexpr (kCentred) add_groups<T, kPacks>(d_bias, a, sums, a.d_bias + offset);
}

template <class T, class Tiling, bool kVector, bool kCentred>
void launch_differentiate(CudaStream& stream, unsigned blocks, BackwardArguments<T> a) {
  const auto kernel = differentiate<T, Tiling, kVector, kCentred>;
  // A property of the kernel, the same for every launch.
  static const cudaError_t raised =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(Tiling::kShared));
  MEGALITH_CUDA_CHECK(raised);
  a.group = Tiling::group(ceil_divide(a.length, kPack<T>));
  const auto groups = static_cast<std::size_t>(std::max(1, Tiling::kThreads / a.group));
  const std::size_t threads = groups * static_cast<std::size_t>(a.group);
  const std::size_t sums = sizeof(float) * groups * static_cast<std::size_t>(a.length);
  kernel<<<blocks, static_cast<unsigned>(threads), std::max(Tiling::kSharedOfThread * threads, sums),
           stream.handle()>>>(a);
}

// Rows of any length: a block owns a share of the rows and its row of partial sums in memory.
template <class T, bool kCentred>
__global__ void __launch_bounds__(kMaxGroup) differentiate_long(const BackwardArguments<T> a) {
  __shared__ float shared[32];
  const Share share(a.index.live());
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
      if (!kCentred && a.y.data != nullptr) a.y.at(place)[i] = narrow<T>(h * widen(a.weight[i]));
      a.d_weight[offset + i] = fmaf(d, h, a.d_weight[offset + i]);
      if constexpr (kCentred) a.d_bias[offset + i] += d;
    }
  }
}

// Dynamic shared memory that a block may have, in bytes: 99 to 227 KiB, by the device.
struct SharedMemory {
  std::size_t most = 0;

  SharedMemory() {
    constexpr int kKept = 1024;  // by the kernels, for their sums
    int device = 0, block = 0;
    MEGALITH_CUDA_CHECK(cudaGetDevice(&device));
    MEGALITH_CUDA_CHECK(cudaDeviceGetAttribute(&block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    most = static_cast<std::size_t>(block - kKept);
  }
};

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
                          .inverse_length = 1.0f / static_cast<float>(op.x.size(-1)),
                          .eps = op.eps};
    const std::int64_t packs = ceil_divide(a.length, kPack<T>);
    if (packs > kMaxRowPacks) {
      normalise_long<T, kCentred><<<blocks_for(a.index.rows, 1), kMaxGroup, 0, stream.handle()>>>(a);
      return;
    }
    const bool vector = rows_aligned(op.x) && rows_aligned(op.residual) && rows_aligned(op.sum) && rows_aligned(op.y) &&
                        rows_aligned(op.weight) && rows_aligned(bias);
    const RowTiling tiling = tile_forward(packs, vector);
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
void launch_backward(CudaStream& stream, const Op& op, const Tensor& mean, const Tensor& d_bias, const Tensor& y) {
  const int length = row_length(op.x);
  const unsigned blocks = blocks_for(op.d_weight_partial.size(0), 1);
  visit_float(op.x.dtype, [&](auto type) {
    using T = decltype(type);
    BackwardArguments<T> a{.index = RowIndexer(op.x),
                           .dy = RowPointer<const T>(op.dy),
                           .x = RowPointer<const T>(op.x),
                           .d_residual = RowPointer<const T>(op.d_residual),
                           .dx = RowPointer<T>(op.dx),
                           .y = RowPointer<T>(y),
                           .weight = op.weight.template as<const T>(),
                           .mean = mean.as<const float>(),
                           .rstd = op.rstd.template as<const float>(),
                           .d_weight = op.d_weight_partial.template as<float>(),
                           .d_bias = d_bias.as<float>(),
                           .length = length,
                           .inverse_length = 1.0f / static_cast<float>(length)};
    const std::int64_t packs = ceil_divide(a.length, kPack<T>);
    if (packs > kMaxRowPacks) {
      differentiate_long<T, kCentred><<<blocks, kMaxGroup, 0, stream.handle()>>>(a);
      return;
    }
    const bool vector = rows_aligned(op.x) && rows_aligned(op.dy) && rows_aligned(op.d_residual) &&
                        rows_aligned(op.dx) && rows_aligned(y) && rows_aligned(op.weight);
    visit_backward_tiling(packs, [&](auto tiling) {
      using Tiling = decltype(tiling);
      if (Tiling::kShared > stream.keep<SharedMemory>().most) {  // the widest tiling, before Hopper
        differentiate_long<T, kCentred><<<blocks, kMaxGroup, 0, stream.handle()>>>(a);
      } else if (vector) {
        launch_differentiate<T, Tiling, true, kCentred>(stream, blocks, a);
      } else {
        launch_differentiate<T, Tiling, false, kCentred>(stream, blocks, a);
      }
    });
  });
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void run(CudaStream& stream, const RmsNormForward& op) { launch_forward<false>(stream, op, {}, {}); }

void run(CudaStream& stream, const RmsNormBackward& op) { launch_backward<false>(stream, op, {}, {}, op.y); }

void run(CudaStream& stream, const LayerNormForward& op) { launch_forward<true>(stream, op, op.bias, op.mean); }

void run(CudaStream& stream, const LayerNormBackward& op) {
  launch_backward<true>(stream, op, op.mean, op.d_bias_partial, {});
}

}  // namespace megalith

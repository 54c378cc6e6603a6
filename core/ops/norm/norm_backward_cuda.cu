// RMSNorm and LayerNorm, backward. Memory-bound: dy, x and d_residual are read once, a few rows ahead into shared
// memory, and dx is written once. Each block processes a fixed share of the rows and keeps its partial weight gradient
// in registers. Deterministic: fixed trees over lanes, warps and groups, for any alignment and device.
// norm_backward_few.cuh handles few rows.
#include "core/ops/norm/norm_backward_few.cuh"

namespace megalith {

namespace {

using namespace cuda;

// A block's rows.
struct Share {
  std::int64_t begin, end;
  __device__ explicit Share(std::int64_t rows)
      : begin(rows * blockIdx.x / gridDim.x), end(rows * (blockIdx.x + 1) / gridDim.x) {}
};

// Adds the groups' sums in order into out[i], for the elements of a row. `shared` is [groups][length].
template <class T, int kPacks>
__device__ void add_groups(const Floats<T> (&sums)[kPacks], const BackwardArguments<T>& a, float* shared, float* out) {
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

constexpr int kDepth = 2;  // turns in flight, including the current one

// Tiling of the backward: a group processes kRows rows at a time, which share barriers; several groups a block; two
// blocks fit a multiprocessor.
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

// A block owns a share of the rows; its groups take turns. `stages` is [kDepth][kRows][3 or 2
// tensors][kPacks][threads], and at the end the groups' sums [groups][length].
template <class Op, class T, class Tiling, bool kVector>
__global__ void __launch_bounds__(Tiling::kThreads, Tiling::kBlocks)
    norm_backward_kernel(const BackwardArguments<T> a) {
  constexpr int kWidth = kPack<T>, kPacks = Tiling::kPacks, kRows = Tiling::kRows;
  constexpr bool kCentred = kIsLayerNorm<Op>;
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
  // Fetches the group's rows of a turn; nothing beyond its last one.
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
  Floats<T> d_weight[kPacks], d_bias[kPacks];
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

    float total[kRows * kSums] = {};  // sums of each row's g (x - mean) and g
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        const Floats<T> d(*slot(turn, r, 0, k)), v(*slot(turn, r, 1, k)), w = factors<T>(weight[k], a.center);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float g = d[j] * w[j];
          total[r * kSums] = fmaf(g, kCentred ? v[j] - now.mean[r] : v[j], total[r * kSums]);
          if constexpr (kCentred) total[r * kSums + 1] = __fadd_rn(total[r * kSums + 1], g);
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
        const int first = (lane + k * a.group) * kWidth;
        const Floats<T> d(*slot(turn, r, 0, k)), v(*slot(turn, r, 1, k)), w = factors<T>(weight[k], a.center);
        Floats<T> q;
        if (has_residual) q = Floats<T>(*slot(turn, r, 2, k));
        if (!kCentred && a.y.data != nullptr) {
          const Floats<T> y = map([&](float x, float scale) { return x * rstd * scale; }, v, w);
          store_of_row<T, kVector>(a.y.at(place), first, length, y.packed());
        }
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float h = (kCentred ? v[j] - mean : v[j]) * rstd;
          const float centred = kCentred ? fmaf(d[j], w[j], -mean_g) : d[j] * w[j];
          q[j] = fmaf(fmaf(-h, mean_gh, centred), rstd, q[j]);
          d_weight[k][j] = fmaf(d[j], h, d_weight[k][j]);
          if constexpr (kCentred) d_bias[k][j] += d[j];
        }
        store_of_row<T, kVector>(dx, first, length, q.packed());
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

// Rows of any length: a block owns a share of the rows and its row of partial sums in memory.
template <class Op, class T>
__global__ void __launch_bounds__(kMaxGroup) norm_backward_long_kernel(const BackwardArguments<T> a) {
  constexpr bool kCentred = kIsLayerNorm<Op>;
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
      const float g = widen(dy[i]) * (widen(a.weight[i]) + a.center);
      total = fmaf(g, (widen(x[i]) - mean) * rstd, total);
      total_g += g;
    }
    const float mean_gh = block_sum(total, shared) / static_cast<float>(a.length);
    const float mean_g = kCentred ? block_sum(total_g, shared) / static_cast<float>(a.length) : 0.0f;
    for (int i = begin; i < a.length; i += step) {
      const float d = widen(dy[i]), h = (widen(x[i]) - mean) * rstd, weight = widen(a.weight[i]) + a.center;
      float v = fmaf(-h, mean_gh, fmaf(d, weight, -mean_g)) * rstd;
      if (a.d_residual.data != nullptr) v += widen(a.d_residual.at(place)[i]);
      a.dx.at(place)[i] = narrow<T>(v);
      if (!kCentred && a.y.data != nullptr) a.y.at(place)[i] = narrow<T>(h * weight);
      a.d_weight[offset + i] = fmaf(d, h, a.d_weight[offset + i]);
      if constexpr (kCentred) a.d_bias[offset + i] += d;
    }
  }
}

template <class Op>
void launch_backward(CudaStream& stream, const Op& op, const Tensor& mean, const Tensor& d_bias, const Tensor& y) {
  const bool vector =
      rows_aligned(op.x, op.dy, op.d_residual, op.dx, y, op.weight) && starts_aligned(op.d_weight_partial, d_bias);
  Variants(op.x.dtype, vector).visit([&](auto type, auto is_vector) {
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
                           .length = row_length(op.x),
                           .inverse_length = 1.0f / static_cast<float>(op.x.size(-1)),
                           .center = op.zero_centered ? 1.0f : 0.0f};
    const std::int64_t packs = ceil_divide(a.length, kPack<T>);
    const unsigned blocks = blocks_for(op.d_weight_partial.size(0), 1);
    const auto launch_long = [&] { launch_kernel(stream, {blocks, kMaxGroup}, norm_backward_long_kernel<Op, T>, a); };
    if (packs > kMaxRowPacks) return launch_long();
    visit_backward_tiling(packs, [&](auto tiling) {
      using Tiling = decltype(tiling);
      constexpr int kShared = static_cast<int>(Tiling::kShared);
      if (kShared > stream.dynamic_shared_memory_of_block()) return launch_long();  // widest rows, before Hopper
      constexpr auto kKernel = norm_backward_kernel<Op, T, Tiling, is_vector()>;
      allow_shared_memory<kKernel>(kShared);
      a.group = Tiling::group(packs);
      if constexpr (Tiling::kPacks <= 2) {
        if (launch_few<Op, Tiling::kPacks, is_vector()>(stream, blocks, a)) return;
      }
      const auto groups = static_cast<std::size_t>(std::max(1, Tiling::kThreads / a.group));
      const std::size_t threads = groups * static_cast<std::size_t>(a.group);
      const std::size_t sums = sizeof(float) * groups * static_cast<std::size_t>(a.length);
      const std::size_t shared = std::max(Tiling::kSharedOfThread * threads, sums);
      launch_kernel(stream, {blocks, static_cast<unsigned>(threads), shared}, kKernel, a);
    });
  });
}

}  // namespace

void run(CudaStream& stream, const RmsNormBackward& op) { launch_backward(stream, op, {}, {}, op.y); }
void run(CudaStream& stream, const LayerNormBackward& op) {
  launch_backward(stream, op, op.mean, op.d_bias_partial, {});
}

}  // namespace megalith

// RMSNorm and LayerNorm, forward. Memory-bound: a group of threads owns a row, reads it once into registers, and writes
// it once. Deterministic: fixed trees over lanes and warps, for any alignment and device.
#include "core/ops/norm/cuda_norm.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kThreads = 256;  // threads of a block with smaller groups

struct Tiling {
  int packs;   // packs of a thread
  int group;   // threads of a row: a power of two up to 32, or whole warps
  int groups;  // rows a block works on at a time
};

constexpr std::int64_t kBlocks = 256;  // least number of blocks, if rows suffice: few rows are bound by latency

Tiling tile(std::int64_t row_packs, std::int64_t rows) {
  const int packs = row_packs <= 96                       ? static_cast<int>(ceil_divide(row_packs, 32))
                    : row_packs > 128 && row_packs <= 224 ? 7
                                                          : 4;
  int group = row_packs <= 96 ? 32 : static_cast<int>(ceil_divide(row_packs, 32 * packs) * 32);
  while (group <= 32 && group / 2 >= row_packs && group > 1) group /= 2;
  const auto most = std::max(1, kThreads / group), of_warp = std::max(1, 32 / group);
  const auto groups = static_cast<int>(std::min<std::int64_t>(most, rows / kBlocks)) / of_warp * of_warp;
  return {.packs = packs, .group = group, .groups = std::max(of_warp, groups)};
}

template <class Visit>
void visit_packs(int packs, Visit&& visit) {
  switch (packs) {
    case 1: return visit(std::integral_constant<int, 1>{});
    case 2: return visit(std::integral_constant<int, 2>{});
    case 3: return visit(std::integral_constant<int, 3>{});
    case 4: return visit(std::integral_constant<int, 4>{});
    default: return visit(std::integral_constant<int, 7>{});
  }
}

// Sums over the threads of a row. `shared` is [2][16 warps]; `turn` alternates, so that one barrier a sum is enough. If
// groups exceed a warp, all threads of the block must call it.
struct GroupSum {
  int group;
  float (*shared)[16];
  int turn = 0;

  __device__ void operator()(float& x) {
    if (group < 32) {
      x = warp_sum(x, group);
      return;
    }
    x = warp_sum(x);
    if (group == 32) return;
    const int warp = static_cast<int>(threadIdx.x) / 32, warps = group / 32;
    if (threadIdx.x % 32 == 0) shared[turn][warp] = x;
    const int first = warp / warps * warps;
    named_barrier_sync(kFirstGroupBarrier + first / warps, group);
    x = shared[turn][first];
    for (int w = 1; w < warps; ++w) x += shared[turn][first + w];
    turn ^= 1;
  }
};

template <class T>
struct ForwardArguments {
  RowIndexer index;
  RowPointer<const T> x, residual;
  RowPointer<T> sum, y;
  const T *weight, *bias;
  float *mean, *rstd;
  int length, group;
  float inverse_length, eps, center;
};

// A block owns blockDim.x / group rows.
template <class Op, class T, int kPacks, bool kVector>
__global__ void __launch_bounds__(kPacks == 4 ? kMaxGroup : kThreads) norm_forward_kernel(const ForwardArguments<T> a) {
  constexpr int kWidth = kPack<T>;
  constexpr bool kCentred = kIsLayerNorm<Op>;
  __shared__ float shared[2][16];
  let_next_grid_start();
  if (gridDim.x == 1) {  // few rows, as in generation: the weights have left the cache since the last token
    for (int i = static_cast<int>(threadIdx.x) * kPack<T>; i < a.length; i += static_cast<int>(blockDim.x) * kPack<T>)
      prefetch_to_l2(a.weight + i);
  }
  wait_for_previous_grids();
  GroupSum sum_group{a.group, shared};
  const int lane = static_cast<int>(threadIdx.x) % a.group;
  const int groups = static_cast<int>(blockDim.x) / a.group;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x / a.group;
  const int length = row < a.index.live() ? a.length : 0;  // rows past the end count as empty
  const RowPlace place(a.index, static_cast<unsigned>(length > 0 ? row : 0));

  // Without a residual -0 is added, which changes nothing. Without a branch, all loads stay together.
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
    Floats<T> v(raw[k]);
    v += Floats<T>(make_uint4(added[k].x | absent, added[k].y | absent, added[k].z | absent, added[k].w | absent));
    raw[k] = v.packed();
    store_of_row<T, kVector>(sum, (lane + k * a.group) * kWidth, also, raw[k]);
    v = Floats<T>(raw[k]);
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
      const Floats<T> v(raw[k]);
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
    Floats<T> v(raw[k]);
    const Floats<T> w = factors<T>(load_of_row<T, kVector>(a.weight, first, length), a.center);
    if constexpr (kCentred) {
      const Floats<T> bias(load_of_row<T, kVector>(a.bias, first, length));
      v = map([&](float x, float weight, float b) { return fmaf((x - mean) * rstd, weight, b); }, v, w, bias);
    } else {
      v = map([&](float x, float weight) { return x * rstd * weight; }, v, w);
    }
    store_of_row<T, kVector>(y, first, length, v.packed());
  }
}

// Rows of any length: a block owns one and reads it three times (the later times from cache), element by element.
template <class Op, class T>
__global__ void __launch_bounds__(kMaxGroup) norm_forward_long_kernel(const ForwardArguments<T> a) {
  constexpr bool kCentred = kIsLayerNorm<Op>;
  __shared__ float shared[32];
  start_early();
  const int begin = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  const std::int64_t row = blockIdx.x;
  if (row >= a.index.live()) return;
  const RowPlace place(a.index, static_cast<unsigned>(row));
  const T* x = a.x.at(place);
  float total = 0;
  for (int i = begin; i < a.length; i += step) {
    float v = widen(x[i]);
    if (a.residual.data != nullptr) {
      const T stored = narrow<T>(v + widen(a.residual.at(place)[i]));
      a.sum.at(place)[i] = stored;
      v = widen(stored);
    }
    total = kCentred ? total + v : fmaf(v, v, total);
  }
  const T* input = a.residual.data != nullptr ? a.sum.at(place) : x;  // each thread reads its own writes
  total = block_sum(total, shared);
  float mean = 0;
  if constexpr (kCentred) {
    mean = total / static_cast<float>(a.length);
    total = 0;
    for (int i = begin; i < a.length; i += step) {
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
  for (int i = begin; i < a.length; i += step) {
    const float h = (widen(input[i]) - mean) * rstd;
    const float weight = widen(a.weight[i]) + a.center;
    y[i] = narrow<T>(kCentred ? fmaf(h, weight, widen(a.bias[i])) : h * weight);
  }
}

template <class Op>
void launch_forward(CudaStream& stream, const Op& op, const Tensor& bias, const Tensor& mean) {
  const bool vector = rows_aligned(op.x, op.residual, op.sum, op.y, op.weight, bias);
  Variants(op.x.dtype, vector).visit([&](auto type, auto is_vector) {
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
                          .eps = op.eps,
                          .center = op.zero_centered ? 1.0f : 0.0f};
    const std::int64_t packs = ceil_divide(a.length, kPack<T>);
    if (packs > kMaxRowPacks) {
      return launch_early(stream, {blocks_for(a.index.rows, 1), kMaxGroup}, norm_forward_long_kernel<Op, T>, a);
    }
    const Tiling tiling = tile(packs, a.index.rows);
    a.group = tiling.group;
    const Grid grid{blocks_for(a.index.rows, tiling.groups), static_cast<unsigned>(tiling.group * tiling.groups)};
    visit_packs(tiling.packs,
                [&](auto count) { launch_early(stream, grid, norm_forward_kernel<Op, T, count(), is_vector()>, a); });
  });
}

}  // namespace

void run(CudaStream& stream, const RmsNormForward& op) { launch_forward(stream, op, {}, {}); }
void run(CudaStream& stream, const LayerNormForward& op) { launch_forward(stream, op, op.bias, op.mean); }

}  // namespace megalith

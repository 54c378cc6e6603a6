// One group of lanes owns one key at a time and holds a slice of every row in registers; a block owns one query row
// (forward, dq) or one key row (dk, dv). Partial results are added in a fixed order, so bits repeat. Limited by L2 and
// latency rather than by arithmetic: right for generation, where the cache is read once per query head, and for tests.
#include "core/ops/attention_rows_cuda.h"

#include "core/device/cuda/fault.cuh"
#include "core/ops/cuda_launch.cuh"
#include "core/ops/cuda_pack.cuh"
#include "core/ops/cuda_reduce.cuh"

namespace megalith {

namespace {

using namespace cuda;

constexpr int kWarp = 32, kWarps = 8, kThreads = kWarps * kWarp;

// [B, tokens, heads, D] with stride 1 in D.
template <class T>
struct Heads {
  T* data;
  std::int64_t sample, token, head;

  Heads(const Tensor& x) : data(x.as<T>()), sample(x.stride(0)), token(x.stride(1)), head(x.stride(2)) {}
  __device__ T* row(std::int64_t b, std::int64_t s, std::int64_t n) const {
    return data + b * sample + s * token + n * head;
  }
};

// What one load moves: kWidth elements in 16 bytes, or 1 element where rows are not aligned.
template <class T, int kWidth>
using Word = std::conditional_t<kWidth == 1, T, uint4>;

// How the lanes of a group share a row of dim elements: chunks of kWidth, `lanes` chunks apart.
struct Lanes {
  int lane, lanes, dim;
  template <int kWidth>
  __device__ int at(int chunk) const {
    return (chunk * lanes + lane) * kWidth;
  }
};

template <class T, int kWidth>
inline constexpr int kChunksOf = kWidth == 1 ? kMaxHeadDim / kWarp : kMaxHeadDim / (kWidth * kWarp);

// A lane's part of a row as loaded. Apart from Slice, and without a branch, so that the loads of several rows are under
// way together; a lane beyond the row's end reads its start.
template <class T, int kWidth>
struct Stored {
  Word<T, kWidth> word[kChunksOf<T, kWidth>];

  __device__ Stored() {}
  __device__ Stored(const T* row, const Lanes& l) { read(row, l); }
  __device__ void read(const T* row, const Lanes& l) {
#pragma unroll
    for (int c = 0; c < kChunksOf<T, kWidth>; ++c) {
      const int at = l.at<kWidth>(c);
      word[c] = *reinterpret_cast<const Word<T, kWidth>*>(row + (at < l.dim ? at : 0));
    }
  }
};

// A lane's part of a row as numbers; 0 beyond the row's end.
template <class T, int kWidth>
struct Slice {
  static constexpr int kChunks = kChunksOf<T, kWidth>;
  float x[kChunks][kWidth] = {};

  Slice() = default;
  __device__ Slice(const Stored<T, kWidth>& stored, const Lanes& l) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const bool inside = l.at<kWidth>(c) < l.dim;
      if constexpr (kWidth == 1) {
        x[c][0] = inside ? widen(stored.word[c]) : 0.0f;
      } else {
        const Floats<T> v(stored.word[c]);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) x[c][i] = inside ? v[i] : 0.0f;
      }
    }
  }
  template <class Visit>
  __device__ static void each(const Visit& visit) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) visit(c, i);
    }
  }
  __device__ float dot(const Slice& other) const {
    float sum = 0;
    each([&](int c, int i) { sum = fmaf(x[c][i], other.x[c][i], sum); });
    return sum;
  }
  __device__ void scale(float factor) {
    each([&](int c, int i) { x[c][i] *= factor; });
  }
  __device__ void add(float factor, const Slice& other) {
    each([&](int c, int i) { x[c][i] = fmaf(factor, other.x[c][i], x[c][i]); });
  }
  // Adds the slices of the warp's groups, pairwise; the first group holds the sum.
  __device__ void add_groups(int lanes) {
    for (int offset = lanes; offset < kWarp; offset *= 2) {
      each([&](int c, int i) { x[c][i] += __shfl_down_sync(kAllLanes, x[c][i], offset); });
    }
  }
  __device__ void write(float* row, const Lanes& l) const {
    each([&](int c, int i) {
      const int at = l.at<kWidth>(c) + i;
      if (at < l.dim) row[at] = x[c][i];
    });
  }
};

// exp(from - to), 0 for the start value -inf of a group that has seen no score.
__device__ float rescaling(float from, float to) { return from == -INFINITY ? 0.0f : expf(from - to); }

struct Place {  // of a thread among the groups of its block
  Lanes lanes;
  int group, groups;
  __device__ Place(int lanes_of_group, int dim)
      : lanes{static_cast<int>(threadIdx.x) % lanes_of_group, lanes_of_group, dim},
        group(static_cast<int>(threadIdx.x) / lanes_of_group),
        groups(kThreads / lanes_of_group) {}
};

template <class T>
struct ForwardArguments {
  Heads<const T> q, k, v;
  Heads<T> out;
  float* lse;                 // null: not wanted
  const std::int32_t* start;  // null: 0
  std::int64_t tokens, cache_rows, heads, group;
  int dim, lanes;
  float scale;
  bool causal;  // else a row sees all rows of k and v, and start is 0
};

void raise_bad_start(const std::int64_t* values) { refuse_start(values[0], values[1], values[2]); }

// Sees rows 0 .. start + s of k and v, or all, read once, with the running maximum of Milakov & Gimelshein 2018
// (arXiv:1805.02867) in each group. A row's bits depend on nothing but what it sees.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    attention_forward_kernel(ForwardArguments<T> p, CudaFault* fault, CudaFault::Raise raise) {
  constexpr int kAhead = 4;  // keys that a group loads before it uses them
  __shared__ float sums[kWarps][kMaxHeadDim];
  __shared__ float largest_of[kWarps], total_of[kWarps];
  const std::int64_t s = blockIdx.x % p.tokens, n = blockIdx.x / p.tokens % p.heads,
                     b = blockIdx.x / p.tokens / p.heads;
  const std::int64_t start = p.start == nullptr ? 0 : *p.start;
  if (p.causal && (start < 0 || start + p.tokens > p.cache_rows)) {
    if (threadIdx.x == 0) report_fault(fault, raise, start, p.tokens, p.cache_rows);
    return;
  }
  const std::int64_t visible = p.causal ? start + s + 1 : p.cache_rows, kv = n / p.group;
  const Place at(p.lanes, p.dim);
  const Slice<T, kWidth> q(Stored<T, kWidth>(p.q.row(b, s, n), at.lanes), at.lanes);
  Slice<T, kWidth> sum;
  float largest = -INFINITY, total = 0;
  // The same number of turns for all groups of a warp, which shuffle together.
  for (std::int64_t first = 0; first < visible; first += std::int64_t{kAhead} * at.groups) {
    Stored<T, kWidth> k[kAhead], v[kAhead];
    float score[kAhead];
    float most = largest;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t t = first + i * at.groups + at.group;
      const std::int64_t row = t < visible ? t : visible - 1;
      k[i].read(p.k.row(b, row, kv), at.lanes);
      v[i].read(p.v.row(b, row, kv), at.lanes);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      score[i] = p.scale * warp_sum(q.dot(Slice<T, kWidth>(k[i], at.lanes)), p.lanes);
      if (first + i * at.groups + at.group < visible) most = fmaxf(most, score[i]);
    }
    const float factor = rescaling(largest, most);
    largest = most;
    total *= factor;
    sum.scale(factor);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i * at.groups + at.group >= visible) continue;
      const float weight = expf(score[i] - largest);
      total += weight;
      sum.add(weight, Slice<T, kWidth>(v[i], at.lanes));
    }
  }
  float warp_largest = largest;
  for (int offset = p.lanes; offset < kWarp; offset *= 2)
    warp_largest = fmaxf(warp_largest, __shfl_xor_sync(kAllLanes, warp_largest, offset));
  const float to_warp = rescaling(largest, warp_largest);
  total *= to_warp;
  sum.scale(to_warp);
  for (int offset = p.lanes; offset < kWarp; offset *= 2) total += __shfl_down_sync(kAllLanes, total, offset);
  sum.add_groups(p.lanes);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (static_cast<int>(threadIdx.x) % kWarp < p.lanes) sum.write(sums[warp], at.lanes);
  if (threadIdx.x % kWarp == 0) largest_of[warp] = warp_largest, total_of[warp] = total;
  __syncthreads();
  float row_largest = -INFINITY, row_total = 0;
  for (const float value : largest_of) row_largest = fmaxf(row_largest, value);
  for (int w = 0; w < kWarps; ++w) row_total += rescaling(largest_of[w], row_largest) * total_of[w];
  for (int d = static_cast<int>(threadIdx.x); d < p.dim; d += kThreads) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += rescaling(largest_of[w], row_largest) * sums[w][d];
    p.out.row(b, s, n)[d] = narrow<T>(value / row_total);
  }
  if (p.lse != nullptr && threadIdx.x == 0) p.lse[(b * p.heads + n) * p.tokens + s] = row_largest + logf(row_total);
}

template <class T>
struct BackwardArguments {
  Heads<const T> q, k, v, out, d_out;
  Heads<T> dq, dk, dv;
  const float* lse;
  float* delta;
  std::int64_t tokens, keys, heads, kv_heads;
  int dim, lanes;
  float scale;
  bool causal;

  __device__ std::int64_t statistic(std::int64_t b, std::int64_t n, std::int64_t s) const {
    return (b * heads + n) * tokens + s;
  }
};

// Adds the groups' slices over the whole block and writes the row, times `factor`.
template <class T, int kWidth>
__device__ void write_sum(Slice<T, kWidth>& sum, float (&sums)[kWarps][kMaxHeadDim], T* row, const Lanes& lanes,
                          float factor) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  sum.add_groups(lanes.lanes);
  __syncthreads();  // an earlier use of sums
  if (lane < lanes.lanes) sum.write(sums[warp], lanes);
  __syncthreads();
  for (int d = static_cast<int>(threadIdx.x); d < lanes.dim; d += kThreads) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += sums[w][d];
    row[d] = narrow<T>(value * factor);
  }
}

// A block owns a query row: its delta and dq.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) attention_backward_query_kernel(BackwardArguments<T> p) {
  __shared__ float sums[kWarps][kMaxHeadDim];
  const std::int64_t s = blockIdx.x % p.tokens, n = blockIdx.x / p.tokens % p.heads,
                     b = blockIdx.x / p.tokens / p.heads, kv = n / (p.heads / p.kv_heads);
  using Part = Slice<T, kWidth>;
  using Load = Stored<T, kWidth>;
  const Place at(p.lanes, p.dim);
  const Part q(Load(p.q.row(b, s, n), at.lanes), at.lanes), out(Load(p.out.row(b, s, n), at.lanes), at.lanes),
      d_out(Load(p.d_out.row(b, s, n), at.lanes), at.lanes);
  Part sum;
  const float delta = warp_sum(d_out.dot(out), p.lanes);
  const float lse = p.lse[p.statistic(b, n, s)];
  if (threadIdx.x == 0) p.delta[p.statistic(b, n, s)] = delta;
  const std::int64_t last = p.causal ? s : p.keys - 1;
  for (std::int64_t first = 0; first <= last; first += at.groups) {
    const std::int64_t t = first + at.group, row = t <= last ? t : last;
    const Load k_row(p.k.row(b, row, kv), at.lanes), v_row(p.v.row(b, row, kv), at.lanes);
    const Part k(k_row, at.lanes), v(v_row, at.lanes);
    const float weight = expf(p.scale * warp_sum(q.dot(k), p.lanes) - lse);
    const float change = warp_sum(d_out.dot(v), p.lanes) - delta;
    if (t <= last) sum.add(weight * change, k);
  }
  write_sum(sum, sums, p.dq.row(b, s, n), at.lanes, p.scale);
}

// A block owns a key row: its dk and dv, over all query heads of the group and all rows that see it.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) attention_backward_key_kernel(BackwardArguments<T> p) {
  __shared__ float sums[kWarps][kMaxHeadDim];
  const std::int64_t t = blockIdx.x % p.keys, kv = blockIdx.x / p.keys % p.kv_heads,
                     b = blockIdx.x / p.keys / p.kv_heads, group = p.heads / p.kv_heads;
  using Part = Slice<T, kWidth>;
  using Load = Stored<T, kWidth>;
  const Place at(p.lanes, p.dim);
  const Part k(Load(p.k.row(b, t, kv), at.lanes), at.lanes), v(Load(p.v.row(b, t, kv), at.lanes), at.lanes);
  Part dk, dv;
  const std::int64_t first_row = p.causal ? t : 0, rows = p.tokens - first_row, count = rows * group;
  for (std::int64_t first = 0; first < count; first += at.groups) {
    const bool live = first + at.group < count;
    const std::int64_t i = live ? first + at.group : count - 1;
    const std::int64_t s = first_row + i % rows, n = kv * group + i / rows;
    const Load q_row(p.q.row(b, s, n), at.lanes), d_out_row(p.d_out.row(b, s, n), at.lanes);
    const Part q(q_row, at.lanes), d_out(d_out_row, at.lanes);
    const float weight = expf(p.scale * warp_sum(q.dot(k), p.lanes) - p.lse[p.statistic(b, n, s)]);
    const float change = warp_sum(d_out.dot(v), p.lanes) - p.delta[p.statistic(b, n, s)];
    if (live) {
      dv.add(weight, d_out);
      dk.add(weight * change, q);
    }
  }
  write_sum(dk, sums, p.dk.row(b, t, kv), at.lanes, p.scale);
  write_sum(dv, sums, p.dv.row(b, t, kv), at.lanes, 1.0f);
}

// Memory-bound: a block owns one token of k and v, all heads.
template <class T>
__global__ void __launch_bounds__(kThreads)
    kv_cache_append_kernel(Heads<const T> k, Heads<const T> v, Heads<T> k_cache, Heads<T> v_cache,
                           const std::int32_t* start, std::int64_t tokens, std::int64_t cache_rows, int kv_heads,
                           int dim, CudaFault* fault, CudaFault::Raise raise) {
  const std::int64_t s = blockIdx.x % tokens, b = blockIdx.x / tokens, first = *start;
  if (first < 0 || first + tokens > cache_rows) {
    if (threadIdx.x == 0) report_fault(fault, raise, first, tokens, cache_rows);
    return;
  }
  for (int i = static_cast<int>(threadIdx.x); i < kv_heads * dim; i += kThreads) {
    const int n = i / dim, d = i % dim;
    k_cache.row(b, first + s, n)[d] = k.row(b, s, n)[d];
    v_cache.row(b, first + s, n)[d] = v.row(b, s, n)[d];
  }
}

// Lanes that share a row: the least power of two that covers D, so that short rows waste none.
int lanes_for(std::int64_t dim, int width) {
  int lanes = 1;
  while (lanes < kWarp && lanes * width < dim) lanes *= 2;
  return lanes;
}

void attend(CudaStream& stream, const AttentionForward& op, const std::int32_t* start) {
  Variants(op.q.dtype, rows_aligned(op.q, op.k, op.v)).visit([&](auto type, auto is_aligned) {
    using T = decltype(type);
    constexpr int kWidth = is_aligned() ? kPack<T> : 1;
    const ForwardArguments<T> p{.q = op.q,
                                .k = op.k,
                                .v = op.v,
                                .out = op.out,
                                .lse = op.lse.as<float>(),
                                .start = start,
                                .tokens = op.q.size(1),
                                .cache_rows = op.k.size(1),
                                .heads = op.q.size(2),
                                .group = op.q.size(2) / op.k.size(2),
                                .dim = static_cast<int>(op.q.size(3)),
                                .lanes = lanes_for(op.q.size(3), kWidth),
                                .scale = op.scale,
                                .causal = op.causal};
    launch_kernel(stream, {blocks_for(op.q.size(0) * p.heads * p.tokens, 1), kThreads},
                  attention_forward_kernel<T, kWidth>, p, stream.fault(), raise_bad_start);
  });
}

}  // namespace

void run_fp32(CudaStream& stream, const AttentionForward& op) { attend(stream, op, nullptr); }

void run_fp32(CudaStream& stream, const AttentionBackward& op) {
  Variants(rows_aligned(op.q, op.k, op.v, op.out, op.d_out)).visit([&](auto is_aligned) {
    constexpr int kWidth = is_aligned() ? kPack<float> : 1;
    const BackwardArguments<float> p{.q = op.q,
                                     .k = op.k,
                                     .v = op.v,
                                     .out = op.out,
                                     .d_out = op.d_out,
                                     .dq = op.dq,
                                     .dk = op.dk,
                                     .dv = op.dv,
                                     .lse = op.lse.as<const float>(),
                                     .delta = op.delta.as<float>(),
                                     .tokens = op.q.size(1),
                                     .keys = op.k.size(1),
                                     .heads = op.q.size(2),
                                     .kv_heads = op.k.size(2),
                                     .dim = static_cast<int>(op.q.size(3)),
                                     .lanes = lanes_for(op.q.size(3), kWidth),
                                     .scale = op.scale,
                                     .causal = op.causal};
    const std::int64_t samples = op.q.size(0);
    launch_kernel(stream, {blocks_for(samples * p.heads * p.tokens, 1), kThreads},
                  attention_backward_query_kernel<float, kWidth>, p);
    launch_kernel(stream, {blocks_for(samples * p.kv_heads * p.keys, 1), kThreads},
                  attention_backward_key_kernel<float, kWidth>, p);
  });
}

void run(CudaStream& stream, const CachedAttention& op) {
  if (op.q.numel() == 0) return;
  attend(stream, {.q = op.q, .k = op.k_cache, .v = op.v_cache, .out = op.out, .scale = op.scale}, op.start);
}

void run(CudaStream& stream, const KvCacheAppend& op) {
  if (op.k.numel() == 0) return;
  Variants(op.k.dtype).visit([&](auto type) {
    using T = decltype(type);
    launch_kernel(stream, {blocks_for(op.k.size(0) * op.k.size(1), 1), kThreads}, kv_cache_append_kernel<T>,
                  Heads<const T>(op.k), Heads<const T>(op.v), Heads<T>(op.k_cache), Heads<T>(op.v_cache), op.start,
                  op.k.size(1), op.k_cache.size(1), static_cast<int>(op.k.size(2)), static_cast<int>(op.k.size(3)),
                  stream.fault(), raise_bad_start);
  });
}

}  // namespace megalith

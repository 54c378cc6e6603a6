// Forward attention by rows of a sequence or of rows after a cache, the fused decode step of one token, and the cache's
// append; see attention_rows_cuda.cuh.
#include "core/ops/attention/attention_rows_cuda.cuh"

#include "core/device/cuda/fault.cuh"
#include "core/ops/attention/rope_frequency.h"

namespace megalith {

namespace {

using namespace cuda;
using namespace cuda::attention;

template <class T>
struct ForwardArguments {
  Heads<const T> q, k, v;
  Heads<T> out;
  float* lse;                 // null: no output
  const std::int32_t* start;  // null: 0
  std::int64_t tokens, cache_rows, heads, group;
  int dim, lanes;
  float scale;
  Documents documents;
};

void raise_bad_start(const std::int64_t* values) { refuse_start(values[0], values[1], values[2]); }

// Attends, as a block, from query row `q_row` to the first `visible` rows of key(t) and value(t), each read once. Each
// group keeps the running maximum of Milakov & Gimelshein 2018 (arXiv:1805.02867). The bits depend on nothing else.
template <class T, int kWidth, class Key, class Value>
__device__ void attend_row(const ForwardArguments<T>& p, std::int64_t b, std::int64_t s, std::int64_t n, const T* q_row,
                           std::int64_t visible, const Key& key, const Value& value_row) {
  constexpr int kAhead = 4;  // keys that a group loads ahead of use
  __shared__ float sums[kWarps][kMaxHeadDim];
  __shared__ float largest_of[kWarps], total_of[kWarps];
  const GroupPlace at(p.lanes, p.dim);
  const Slice<T, kWidth> q(Stored<T, kWidth>(q_row, at.lanes), at.lanes);
  Slice<T, kWidth> sum;
  float largest = -INFINITY, total = 0;
  // All groups of a warp run equally many iterations, because they shuffle together.
  for (std::int64_t first = 0; first < visible; first += std::int64_t{kAhead} * at.groups) {
    Stored<T, kWidth> k[kAhead], v[kAhead];
    float score[kAhead];
    float most = largest;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t t = first + i * at.groups + at.group;
      const std::int64_t row = t < visible ? t : visible - 1;
      k[i].read(key(row), at.lanes);
      v[i].read(value_row(row), at.lanes);
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
    p.out.row(b, s, n)[d] = narrow<T>(visible == 0 ? 0.0f : value / row_total);
  }
  if (p.lse != nullptr && threadIdx.x == 0) p.lse[(b * p.heads + n) * p.tokens + s] = row_largest + logf(row_total);
}

// A row sees those of its document; with a cache, rows 0 .. start + s of k and v. A window leaves the last ones of
// them.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    attention_forward_kernel(ForwardArguments<T> p, CudaFault* fault, CudaFault::Raise raise) {
  const std::int64_t s = blockIdx.x % p.tokens, n = blockIdx.x / p.tokens % p.heads,
                     b = blockIdx.x / p.tokens / p.heads;
  start_early();
  Documents::Rows seen{};
  if (p.start != nullptr) {
    const std::int64_t start = *p.start;
    if (start < 0 || start + p.tokens > p.cache_rows) {
      if (threadIdx.x == 0) report_fault(fault, raise, start, p.tokens, p.cache_rows);
      return;
    }
    seen = p.documents.seen_keys({}, start + s);
  } else {
    DocumentSpan document;
    if (!p.documents.find(s, false, document)) return;
    seen = p.documents.seen_keys(document, s);
  }
  const std::int64_t kv = n / p.group;
  attend_row<T, kWidth>(
      p, b, s, n, p.q.row(b, s, n), seen.count, [&](std::int64_t t) { return p.k.row(b, seen.first + t, kv); },
      [&](std::int64_t t) { return p.v.row(b, seen.first + t, kv); });
}

template <class T>
struct DecodeArguments {
  Heads<const T> k, v;
  Heads<T> k_cache, v_cache;
  RopeFrequencies frequencies;
  int pairs;  // rotated pairs; 0: none
};

// A block owns a query head and rotates its q and its key. The first block of a key's heads writes the cache.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    decode_attention_kernel(ForwardArguments<T> p, DecodeArguments<T> d, CudaFault* fault, CudaFault::Raise raise) {
  __shared__ alignas(16) T turned[2][kMaxHeadDim];  // q and k
  const std::int64_t n = blockIdx.x % p.heads, b = blockIdx.x / p.heads, kv = n / p.group;
  const int i = static_cast<int>(threadIdx.x);
  let_next_grid_start();
  const double frequency = i < d.pairs ? d.frequencies[i] : 0;
  wait_for_previous_grids();
  const std::int64_t start = *p.start;
  if (start < 0 || start >= p.cache_rows) {
    if (i == 0) report_fault(fault, raise, start, std::int64_t{1}, p.cache_rows);
    return;
  }
  const T *rows[2] = {p.q.row(b, 0, n), d.k.row(b, 0, kv)}, *v = d.v.row(b, 0, kv);
  double sine = 0, cosine = 1;
  if (i < d.pairs) sincos(static_cast<double>(start) * frequency, &sine, &cosine);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (i < d.pairs) {  // same as rope_kernel
      const float low = widen(rows[r][i]), high = widen(rows[r][i + d.pairs]);
      const auto c = static_cast<float>(d.frequencies.attention_factor * cosine);
      const auto s = static_cast<float>(d.frequencies.attention_factor * sine);
      turned[r][i] = narrow<T>(fmaf(-high, s, low * c));
      turned[r][i + d.pairs] = narrow<T>(fmaf(low, s, high * c));
    }
    if (i >= 2 * d.pairs && i < p.dim) turned[r][i] = rows[r][i];
  }
  __syncthreads();
  if (n % p.group == 0 && i < p.dim) {
    d.k_cache.row(b, start, kv)[i] = turned[1][i];
    d.v_cache.row(b, start, kv)[i] = v[i];
  }
  const Documents::Rows seen = p.documents.seen_keys({}, start);
  const auto row_of = [&](const Heads<const T>& cache, const T* own, std::int64_t t) {
    return seen.first + t == start ? own : cache.row(b, seen.first + t, kv);
  };
  attend_row<T, kWidth>(
      p, b, 0, n, turned[0], seen.count, [&](std::int64_t t) { return row_of(p.k, turned[1], t); },
      [&](std::int64_t t) { return row_of(p.v, v, t); });
}

// Memory-bound: a block owns one token of k and v, all heads.
template <class T>
__global__ void __launch_bounds__(kThreads)
    kv_cache_append_kernel(Heads<const T> k, Heads<const T> v, Heads<T> k_cache, Heads<T> v_cache,
                           const std::int32_t* start, std::int64_t tokens, std::int64_t cache_rows, int kv_heads,
                           int dim, CudaFault* fault, CudaFault::Raise raise) {
  start_early();
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

template <class T>
ForwardArguments<T> arguments_of(CudaStream& stream, const AttentionForward& op, const std::int32_t* start, int width) {
  return {.q = op.q,
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
          .lanes = lanes_for(op.q.size(3), width),
          .scale = op.scale,
          .documents = Documents(op, stream.fault())};
}

void attend(CudaStream& stream, const AttentionForward& op, const std::int32_t* start) {
  Variants(op.q.dtype, rows_aligned(op.q, op.k, op.v)).visit([&](auto type, auto is_aligned) {
    using T = decltype(type);
    constexpr int kWidth = is_aligned() ? kPack<T> : 1;
    launch_early(stream, {blocks_for(op.q.numel() / op.q.size(3), 1), kThreads}, attention_forward_kernel<T, kWidth>,
                 arguments_of<T>(stream, op, start, kWidth), stream.fault(), raise_bad_start);
  });
}

}  // namespace

void run_fp32(CudaStream& stream, const AttentionForward& op) { attend(stream, op, nullptr); }

void run(CudaStream& stream, const CachedAttention& op) {
  if (op.q.numel() == 0) return;
  attend(stream, {.q = op.q, .k = op.k_cache, .v = op.v_cache, .out = op.out, .scale = op.scale, .window = op.window},
         op.start);
}

void run(CudaStream& stream, const DecodeAttention& op) {
  if (op.q.numel() == 0) return;
  static_assert(kMaxHeadDim <= kThreads);
  const AttentionForward forward{
      .q = op.q, .k = op.k_cache, .v = op.v_cache, .out = op.out, .scale = op.scale, .window = op.window};
  Variants(op.q.dtype, rows_aligned(op.v, op.k_cache, op.v_cache)).visit([&](auto type, auto is_aligned) {
    using T = decltype(type);
    constexpr int kWidth = is_aligned() ? kPack<T> : 1;
    const DecodeArguments<T> d{
        .k = op.k,
        .v = op.v,
        .k_cache = op.k_cache,
        .v_cache = op.v_cache,
        .frequencies = rope_frequencies(static_cast<double>(op.theta), op.rotary_dim / 2, op.scaling),
        .pairs = static_cast<int>(op.rotary_dim / 2)};
    launch_early(stream, {blocks_for(op.q.size(0) * op.q.size(2), 1), kThreads}, decode_attention_kernel<T, kWidth>,
                 arguments_of<T>(stream, forward, op.start, kWidth), d, stream.fault(), raise_bad_start);
  });
}

void run(CudaStream& stream, const KvCacheAppend& op) {
  if (op.k.numel() == 0) return;
  Variants(op.k.dtype).visit([&](auto type) {
    using T = decltype(type);
    launch_early(stream, {blocks_for(op.k.size(0) * op.k.size(1), 1), kThreads}, kv_cache_append_kernel<T>,
                 Heads<const T>(op.k), Heads<const T>(op.v), Heads<T>(op.k_cache), Heads<T>(op.v_cache), op.start,
                 op.k.size(1), op.k_cache.size(1), static_cast<int>(op.k.size(2)), static_cast<int>(op.k.size(3)),
                 stream.fault(), raise_bad_start);
  });
}

}  // namespace megalith

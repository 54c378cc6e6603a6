// One group of lanes owns one key at a time and holds a slice of every row in registers; a block owns one query row
// (forward, dq) or one key row (dk, dv). Partial results of lanes, groups and warps are added in a fixed order, so all
// kernels are deterministic. Limited by L2 and latency rather than by arithmetic: right for generation, where the cache
// is read once per query head, and simple where only tests come.
#include <cuda_bf16.h>

#include <type_traits>

#include "core/device/cuda/check.h"
#include "core/device/cuda/fault.cuh"
#include "core/ops/attention_rows_cuda.h"

namespace megalith {

namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

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

__device__ void unpack(float word, float (&out)[1]) { out[0] = word; }
__device__ void unpack(__nv_bfloat16 word, float (&out)[1]) { out[0] = __bfloat162float(word); }
__device__ void unpack(const uint4& word, float (&out)[4]) {
  out[0] = __uint_as_float(word.x), out[1] = __uint_as_float(word.y);
  out[2] = __uint_as_float(word.z), out[3] = __uint_as_float(word.w);
}
__device__ void unpack(const uint4& word, float (&out)[8]) {  // bf16: the upper half of a float
  const unsigned pairs[4] = {word.x, word.y, word.z, word.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(pairs[i] << 16);
    out[2 * i + 1] = __uint_as_float(pairs[i] & 0xFFFF0000u);
  }
}
__device__ void store(float* x, float value) { *x = value; }
__device__ void store(__nv_bfloat16* x, float value) { *x = __float2bfloat16_rn(value); }

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
  float x[kChunks][kWidth];

  __device__ Slice() { fill(0); }
  __device__ Slice(const Stored<T, kWidth>& stored, const Lanes& l) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      unpack(stored.word[c], x[c]);
#pragma unroll
      for (float& element : x[c]) element = l.at<kWidth>(c) < l.dim ? element : 0.0f;
    }
  }
  __device__ void fill(float value) {
#pragma unroll
    for (auto& chunk : x)
#pragma unroll
      for (float& element : chunk) element = value;
  }
  __device__ float dot(const Slice& other) const {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum = fmaf(x[c][i], other.x[c][i], sum);
    return sum;
  }
  __device__ void scale(float factor) {
#pragma unroll
    for (auto& chunk : x)
#pragma unroll
      for (float& element : chunk) element *= factor;
  }
  __device__ void add(float factor, const Slice& other) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[c][i] = fmaf(factor, other.x[c][i], x[c][i]);
  }
  // Adds the slices of the warp's groups, pairwise; the first group holds the sum.
  __device__ void add_groups(int lanes) {
    for (int offset = lanes; offset < kWarp; offset *= 2)
#pragma unroll
      for (auto& chunk : x)
#pragma unroll
        for (float& element : chunk) element += __shfl_down_sync(kAllLanes, element, offset);
  }
  __device__ void write(float* row, const Lanes& l) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const int at = l.at<kWidth>(c) + i;
        if (at < l.dim) row[at] = x[c][i];
      }
  }
};

__device__ float sum_of_group(float value, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

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
struct Rows {
  Heads<const T> q, k, v;
  Heads<T> out;
  float* lse;                 // null: not wanted
  const std::int32_t* start;  // null: 0
  std::int64_t tokens, cache_rows, heads, group;
  int dim, lanes;
  float scale;
  bool causal;  // else a row sees all rows of k and v, and start is 0
  CudaFault* fault;
};

void raise_bad_start(const std::int64_t* values) { refuse_start(values[0], values[1], values[2]); }

// Sees rows 0 .. start + s of k and v, or all, read once, with the running maximum of Milakov & Gimelshein 2018
// (arXiv:1805.02867) in each group. A row's bits depend on nothing but what it sees.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) attend_row(Rows<T> p, CudaFault::Raise raise) {
  constexpr int kAhead = 4;  // keys that a group loads before it uses them
  __shared__ float sums[kWarps][kMaxHeadDim];
  __shared__ float largest_of[kWarps], total_of[kWarps];
  const std::int64_t s = blockIdx.x % p.tokens, n = blockIdx.x / p.tokens % p.heads,
                     b = blockIdx.x / p.tokens / p.heads;
  const std::int64_t start = p.start == nullptr ? 0 : *p.start;
  if (p.causal && (start < 0 || start + p.tokens > p.cache_rows)) {
    if (threadIdx.x == 0) report_fault(p.fault, raise, start, p.tokens, p.cache_rows);
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
      score[i] = p.scale * sum_of_group(q.dot(Slice<T, kWidth>(k[i], at.lanes)), p.lanes);
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
    store(p.out.row(b, s, n) + d, value / row_total);
  }
  if (p.lse != nullptr && threadIdx.x == 0) p.lse[(b * p.heads + n) * p.tokens + s] = row_largest + logf(row_total);
}

template <class T>
struct Gradients {
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
    store(row + d, value * factor);
  }
}

// A block owns a query row: its delta and dq.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) query_gradient_row(Gradients<T> p) {
  __shared__ float sums[kWarps][kMaxHeadDim];
  const std::int64_t s = blockIdx.x % p.tokens, n = blockIdx.x / p.tokens % p.heads,
                     b = blockIdx.x / p.tokens / p.heads, kv = n / (p.heads / p.kv_heads);
  using Part = Slice<T, kWidth>;
  using Load = Stored<T, kWidth>;
  const Place at(p.lanes, p.dim);
  const Part q(Load(p.q.row(b, s, n), at.lanes), at.lanes), out(Load(p.out.row(b, s, n), at.lanes), at.lanes),
      d_out(Load(p.d_out.row(b, s, n), at.lanes), at.lanes);
  Part sum;
  const float delta = sum_of_group(d_out.dot(out), p.lanes);
  const float lse = p.lse[p.statistic(b, n, s)];
  if (threadIdx.x == 0) p.delta[p.statistic(b, n, s)] = delta;
  const std::int64_t last = p.causal ? s : p.keys - 1;
  for (std::int64_t first = 0; first <= last; first += at.groups) {
    const std::int64_t t = first + at.group, row = t <= last ? t : last;
    const Load k_row(p.k.row(b, row, kv), at.lanes), v_row(p.v.row(b, row, kv), at.lanes);
    const Part k(k_row, at.lanes), v(v_row, at.lanes);
    const float weight = expf(p.scale * sum_of_group(q.dot(k), p.lanes) - lse);
    const float change = sum_of_group(d_out.dot(v), p.lanes) - delta;
    if (t <= last) sum.add(weight * change, k);
  }
  write_sum(sum, sums, p.dq.row(b, s, n), at.lanes, p.scale);
}

// A block owns a key row: its dk and dv, over all query heads of the group and all rows that see it.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) key_gradient_row(Gradients<T> p) {
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
    const float weight = expf(p.scale * sum_of_group(q.dot(k), p.lanes) - p.lse[p.statistic(b, n, s)]);
    const float change = sum_of_group(d_out.dot(v), p.lanes) - p.delta[p.statistic(b, n, s)];
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
    append_token(Heads<const T> k, Heads<const T> v, Heads<T> k_cache, Heads<T> v_cache, const std::int32_t* start,
                 std::int64_t tokens, std::int64_t cache_rows, int kv_heads, int dim, CudaFault* fault,
                 CudaFault::Raise raise) {
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

bool aligned_rows(std::initializer_list<const Tensor*> tensors) {
  constexpr std::int64_t kBytes = 16;
  for (const Tensor* x : tensors) {
    const auto item = static_cast<std::int64_t>(size_of(x->dtype));
    if (reinterpret_cast<std::uintptr_t>(x->data) % kBytes != 0 || x->size(3) * item % kBytes != 0) return false;
    for (int d = 0; d < 3; ++d) {
      if (x->stride(d) * item % kBytes != 0) return false;
    }
  }
  return true;
}

// Lanes that share a row: the least power of two that covers D, so that short rows waste none.
int lanes_for(std::int64_t dim, int width) {
  int lanes = 1;
  while (lanes < kWarp && lanes * width < dim) lanes *= 2;
  return lanes;
}

unsigned blocks_of(std::int64_t a, std::int64_t b, std::int64_t c) { return static_cast<unsigned>(a * b * c); }

template <class T>
void attend(CudaStream& stream, Rows<T> p, std::int64_t samples, bool aligned) {
  constexpr int kWidth = 16 / sizeof(T);
  p.fault = stream.fault();
  p.lanes = lanes_for(p.dim, aligned ? kWidth : 1);
  const unsigned blocks = blocks_of(samples, p.heads, p.tokens);
  if (aligned) {
    attend_row<T, kWidth><<<blocks, kThreads, 0, stream.handle()>>>(p, raise_bad_start);
  } else {
    attend_row<T, 1><<<blocks, kThreads, 0, stream.handle()>>>(p, raise_bad_start);
  }
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void attend_cached(CudaStream& stream, const CachedAttention& op) {
  attend<T>(stream,
            {.q = op.q,
             .k = op.k_cache,
             .v = op.v_cache,
             .out = op.out,
             .lse = nullptr,
             .start = op.start,
             .tokens = op.q.size(1),
             .cache_rows = op.k_cache.size(1),
             .heads = op.q.size(2),
             .group = op.q.size(2) / op.k_cache.size(2),
             .dim = static_cast<int>(op.q.size(3)),
             .scale = op.scale,
             .causal = true},
            op.q.size(0), aligned_rows({&op.q, &op.k_cache, &op.v_cache}));
}

template <int kWidth>
void run_backward(CudaStream& stream, Gradients<float> p, std::int64_t samples) {
  p.lanes = lanes_for(p.dim, kWidth);
  query_gradient_row<float, kWidth><<<blocks_of(samples, p.heads, p.tokens), kThreads, 0, stream.handle()>>>(p);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
  key_gradient_row<float, kWidth><<<blocks_of(samples, p.kv_heads, p.keys), kThreads, 0, stream.handle()>>>(p);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void append(CudaStream& stream, const KvCacheAppend& op) {
  append_token<T><<<blocks_of(op.k.size(0), op.k.size(1), 1), kThreads, 0, stream.handle()>>>(
      op.k, op.v, op.k_cache, op.v_cache, op.start, op.k.size(1), op.k_cache.size(1), static_cast<int>(op.k.size(2)),
      static_cast<int>(op.k.size(3)), stream.fault(), raise_bad_start);
  MEGALITH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void run_fp32(CudaStream& stream, const AttentionForward& op) {
  attend<float>(stream,
                {.q = op.q,
                 .k = op.k,
                 .v = op.v,
                 .out = op.out,
                 .lse = op.lse.as<float>(),
                 .start = nullptr,
                 .tokens = op.q.size(1),
                 .cache_rows = op.k.size(1),
                 .heads = op.q.size(2),
                 .group = op.q.size(2) / op.k.size(2),
                 .dim = static_cast<int>(op.q.size(3)),
                 .scale = op.scale,
                 .causal = op.causal},
                op.q.size(0), aligned_rows({&op.q, &op.k, &op.v}));
}

void run_fp32(CudaStream& stream, const AttentionBackward& op) {
  const Gradients<float> p{.q = op.q,
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
                           .scale = op.scale,
                           .causal = op.causal};
  if (aligned_rows({&op.q, &op.k, &op.v, &op.out, &op.d_out})) return run_backward<4>(stream, p, op.q.size(0));
  run_backward<1>(stream, p, op.q.size(0));
}

void run(CudaStream& stream, const CachedAttention& op) {
  if (op.q.numel() == 0) return;
  if (op.q.dtype == DType::kFp32) return attend_cached<float>(stream, op);
  attend_cached<__nv_bfloat16>(stream, op);
}

void run(CudaStream& stream, const KvCacheAppend& op) {
  if (op.k.numel() == 0) return;
  if (op.k.dtype == DType::kFp32) return append<float>(stream, op);
  append<__nv_bfloat16>(stream, op);
}

}  // namespace megalith

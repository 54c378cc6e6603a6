// Backward attention by rows; see attention_rows_cuda.cuh.
#include "core/ops/attention/attention_rows_cuda.cuh"

namespace megalith {

namespace {

using namespace cuda;
using namespace cuda::attention;

template <class T>
struct BackwardArguments {
  Heads<const T> q, k, v, out, d_out;
  Heads<T> dq, dk, dv;
  const float* lse;
  float* delta;
  std::int64_t tokens, keys, heads, kv_heads;
  int dim, lanes;
  float scale;
  Documents documents;

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
  __syncthreads();  // follows an earlier use of sums
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
  DocumentSpan document;
  if (!p.documents.find(s, false, document)) return;
  const Documents::Rows keys = p.documents.seen_keys(document, s);
  const GroupPlace at(p.lanes, p.dim);
  const Part q(Load(p.q.row(b, s, n), at.lanes), at.lanes), out(Load(p.out.row(b, s, n), at.lanes), at.lanes),
      d_out(Load(p.d_out.row(b, s, n), at.lanes), at.lanes);
  Part sum;
  const float delta = warp_sum(d_out.dot(out), p.lanes);
  const float lse = p.lse[p.statistic(b, n, s)];
  if (threadIdx.x == 0) p.delta[p.statistic(b, n, s)] = delta;
  for (std::int64_t first = 0; first < keys.count; first += at.groups) {
    const std::int64_t t = first + at.group, row = keys.first + min(t, keys.count - 1);
    const Load k_row(p.k.row(b, row, kv), at.lanes), v_row(p.v.row(b, row, kv), at.lanes);
    const Part k(k_row, at.lanes), v(v_row, at.lanes);
    const float weight = expf(p.scale * warp_sum(q.dot(k), p.lanes) - lse);
    const float change = warp_sum(d_out.dot(v), p.lanes) - delta;
    if (t < keys.count) sum.add(weight * change, k);
  }
  write_sum(sum, sums, p.dq.row(b, s, n), at.lanes, p.scale);
}

// A block owns a key row: its dk and dv, over the group's query heads and the rows that see it.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) attention_backward_key_kernel(BackwardArguments<T> p) {
  __shared__ float sums[kWarps][kMaxHeadDim];
  const std::int64_t t = blockIdx.x % p.keys, kv = blockIdx.x / p.keys % p.kv_heads,
                     b = blockIdx.x / p.keys / p.kv_heads, group = p.heads / p.kv_heads;
  using Part = Slice<T, kWidth>;
  using Load = Stored<T, kWidth>;
  DocumentSpan document;
  if (!p.documents.find(t, true, document)) return;
  const Documents::Rows queries = p.documents.seeing_queries(document, t);
  const GroupPlace at(p.lanes, p.dim);
  const Part k(Load(p.k.row(b, t, kv), at.lanes), at.lanes), v(Load(p.v.row(b, t, kv), at.lanes), at.lanes);
  Part dk, dv;
  const std::int64_t count = queries.count * group;
  for (std::int64_t first = 0; first < count; first += at.groups) {
    const bool live = first + at.group < count;
    const std::int64_t i = live ? first + at.group : count - 1;
    const std::int64_t s = queries.first + i % queries.count, n = kv * group + i / queries.count;
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

}  // namespace

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
                                     .documents = Documents(op, stream.fault())};
    const std::int64_t samples = op.q.size(0);
    launch_kernel(stream, {blocks_for(samples * p.heads * p.tokens, 1), kThreads},
                  attention_backward_query_kernel<float, kWidth>, p);
    launch_kernel(stream, {blocks_for(samples * p.kv_heads * p.keys, 1), kThreads},
                  attention_backward_key_kernel<float, kWidth>, p);
  });
}

}  // namespace megalith

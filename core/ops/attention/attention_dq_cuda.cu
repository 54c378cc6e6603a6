// dq of packed documents, repeatable: a block owns 64 queries of one head, visits the keys that they see in ascending
// order, and recomputes P from q, k and lse, as in Dao et al. 2022, arXiv:2205.14135. Compute-bound: three products a
// tile, by mma.sync; 4 warps of 16 queries; tiles of 64 keys, of which the next is loaded meanwhile.
#include "core/ops/attention/attention_packed_cuda.h"
#include "core/ops/attention/attention_rows_cuda.cuh"
#include "core/ops/gemm/cuda_product_tile.cuh"

namespace megalith {

namespace {

using namespace cuda;
using cuda::attention::Heads;
using cuda::attention::kWarp;

constexpr int kPadding = 8;  // elements that keep ldmatrix free of bank conflicts

struct DqArguments {
  Heads<const bf16> q, k, v, out, d_out;
  Heads<bf16> dq;
  const float* lse;
  const std::int32_t *query_begin, *key_begin;
  const std::int32_t *query_lengths, *key_lengths;  // checked
  std::int64_t rows, group, window;
  int capacity, dim;
  float scale;
  bool causal;
};

template <int kDim>
using Line = bf16[kDim + kPadding];

template <int kDim>
struct DqShared {
  alignas(16) Line<kDim> q[kTile];
  alignas(16) Line<kDim> d_out[kTile];
  alignas(16) Line<kDim> k[2][kTile];
  alignas(16) Line<kDim> v[2][kTile];
};

// Finds the document of a block, and its first query there; the last ones, which see most keys, come first.
__device__ bool find_tile(const DqArguments& a, int tile, DocumentSpan& document, std::int64_t& first) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int begin = 0; begin < a.capacity; begin += kWarp) {
    const int c = begin + lane, length = c < a.capacity ? a.query_lengths[c] : 0, tiles = (length + kTile - 1) / kTile;
    int end = tiles;
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, end, offset);
      if (lane >= offset) end += other;
    }
    const unsigned holders = __ballot_sync(kAllLanes, tile < end);
    if (holders == 0) {
      tile -= __shfl_sync(kAllLanes, end, kWarp - 1);
      continue;
    }
    const int holder = __ffs(static_cast<int>(holders)) - 1, at = begin + holder;
    const std::int64_t last = __shfl_sync(kAllLanes, end, holder) - 1;
    document = {a.query_begin[at], a.query_lengths[at], a.key_begin[at], a.key_lengths[at]};
    first = (last - tile) * kTile;
    return true;
  }
  return false;
}

// Loads rows `first` to first + kTile - 1 of a document's `count` rows, which begin at row `origin`; zeros after them.
template <int kDim>
__device__ void load_rows(Line<kDim>* to, const Heads<const bf16>& from, std::int64_t origin, std::int64_t first,
                          std::int64_t count, std::int64_t head, int dim) {
  constexpr int kPacks = kDim / kPack<bf16>;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kPacks; i += kTileThreads) {
    const int row = i / kPacks, at = i % kPacks * kPack<bf16>;
    const bool inside = first + row < count;
    stage_of_row<bf16, true>(reinterpret_cast<uint4*>(&to[row][at]),
                             from.row(0, origin + (inside ? first + row : 0), head), at, inside ? dim : 0);
  }
}

// What a thread holds of its warp's 16 queries: rows lane / 4 and lane / 4 + 8.
struct RowNumbers {
  float lse[2], delta[2];
};

template <int kDim>
__device__ RowNumbers row_numbers(const DqArguments& a, const DqShared<kDim>& shared, const DocumentSpan& document,
                                  std::int64_t first, std::int64_t head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  RowNumbers numbers{{INFINITY, INFINITY}, {0, 0}};
  for (int r = 0; r < 16; ++r) {
    const std::int64_t row = first + warp_row + r;
    if (row >= document.queries) break;
    const bf16* const out = a.out.row(0, document.first_query + row, head);
    float sum = 0;
    for (int i = lane; i < a.dim; i += kWarp) sum = fmaf(widen(out[i]), widen(shared.d_out[warp_row + r][i]), sum);
    sum = warp_sum(sum);
    if (r % 8 != lane / 4) continue;
    numbers.delta[r / 8] = sum;
    numbers.lse[r / 8] = a.lse[head * a.rows + document.first_query + row];
  }
  return numbers;
}

// Adds the products of 16 rows of `left` and the rows of a tile of keys.
template <int kDim>
__device__ void multiply_rows(const Line<kDim>* left, const Line<kDim>* right, float (&c)[kTile / 8][4]) {
#pragma unroll
  for (int depth = 0; depth < kDim; depth += 16) {
    unsigned x[4], y[4];
    load_matrices<false>(left, 0, depth, false, x);
#pragma unroll
    for (int key = 0; key < kTile; key += 16) {
      load_matrices<false>(right, key, depth, true, y);
      multiply_add(c[key / 8], x, y[0], y[1]);
      multiply_add(c[key / 8 + 1], x, y[2], y[3]);
    }
  }
}

// Adds dS k of a tile of keys; ds is in the layout of accumulators, which is that of a left operand.
template <int kDim>
__device__ void add_product(const float (&ds)[kTile / 8][4], const Line<kDim>* k, float (&dq)[kDim / 8][4]) {
#pragma unroll
  for (int key = 0; key < kTile; key += 16) {
    const float(&low)[4] = ds[key / 8], (&high)[4] = ds[key / 8 + 1];
    const unsigned x[4] = {pack_pair(low[0], low[1]), pack_pair(low[2], low[3]), pack_pair(high[0], high[1]),
                           pack_pair(high[2], high[3])};
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      unsigned y[4];
      load_matrices<true>(k, key, d, false, y);
      multiply_add(dq[d / 8], x, y[0], y[1]);
      multiply_add(dq[d / 8 + 1], x, y[2], y[3]);
    }
  }
}

// scores = q k^T becomes dS = scale P (dP - delta), P = exp(scale q k^T - lse).
__device__ void differentiate_scores(const DqArguments& a, const RowNumbers& numbers, std::int64_t row,
                                     std::int64_t key, std::int64_t keys, const float (&d_p)[kTile / 8][4],
                                     float (&scores)[kTile / 8][4]) {
  constexpr float kLog2E = 1.44269504f;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t query = row + i / 2 * 8, at = key + n * 8 + i % 2;
      const bool is_seen = at < keys && (!a.causal || (at <= query && (a.window == 0 || query - at < a.window)));
      const float p = exp2f((scores[n][i] * a.scale - numbers.lse[i / 2]) * kLog2E);
      scores[n][i] = is_seen ? p * (d_p[n][i] - numbers.delta[i / 2]) * a.scale : 0.0f;
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kTileThreads, kDim > 128 ? 1 : 2) attention_backward_dq_kernel(const DqArguments a) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<DqShared<kDim>*>(memory);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp_row = static_cast<int>(threadIdx.x) / kWarp * 16;
  const std::int64_t head = blockIdx.y, kv = head / a.group;
  DocumentSpan document;
  std::int64_t first;
  if (!find_tile(a, static_cast<int>(blockIdx.x), document, first)) return;
  const std::int64_t end = a.causal ? min(document.keys, first + kTile) : document.keys;
  const std::int64_t begin = a.window > 0 ? max(std::int64_t{0}, first + 1 - a.window) / kTile * kTile : 0;
  const auto load_keys = [&](int stage, std::int64_t key) {
    load_rows<kDim>(shared.k[stage], a.k, document.first_key, key, document.keys, kv, a.dim);
    load_rows<kDim>(shared.v[stage], a.v, document.first_key, key, document.keys, kv, a.dim);
  };
  load_rows<kDim>(shared.q, a.q, document.first_query, first, document.queries, head, a.dim);
  load_rows<kDim>(shared.d_out, a.d_out, document.first_query, first, document.queries, head, a.dim);
  commit_stage();
  if (begin < end) load_keys(0, begin);
  commit_stage();
  wait_for_stages<1>();
  __syncthreads();
  const RowNumbers numbers = row_numbers(a, shared, document, first, head);
  const std::int64_t row = first + warp_row + lane / 4;  // and 8 rows further
  float dq[kDim / 8][4] = {};
  int stage = 0;
  for (std::int64_t key = begin; key < end; key += kTile, stage ^= 1) {
    if (key + kTile < end) load_keys(stage ^ 1, key + kTile);
    commit_stage();
    wait_for_stages<1>();
    __syncthreads();
    float scores[kTile / 8][4] = {}, d_p[kTile / 8][4] = {};
    multiply_rows<kDim>(shared.q + warp_row, shared.k[stage], scores);
    multiply_rows<kDim>(shared.d_out + warp_row, shared.v[stage], d_p);
    differentiate_scores(a, numbers, row, key + lane % 4 * 2, document.keys, d_p, scores);
    add_product<kDim>(scores, shared.k[stage], dq);
    __syncthreads();  // precedes the load into this stage
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= document.queries) break;
    bf16* const to = a.dq.row(0, document.first_query + row + 8 * half, head);
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      const int at = d * 8 + lane % 4 * 2;
      if (at < a.dim) *reinterpret_cast<unsigned*>(to + at) = pack_pair(dq[d][2 * half], dq[d][2 * half + 1]);
    }
  }
}

template <int kDim>
void launch_dq(CudaStream& stream, const DqArguments& a, std::int64_t heads) {
  constexpr int kBytes = static_cast<int>(sizeof(DqShared<kDim>));
  allow_shared_memory<attention_backward_dq_kernel<kDim>>(kBytes);
  const dim3 grid(blocks_for(a.rows / kTile + a.capacity, 1), static_cast<unsigned>(heads));
  launch_kernel(stream, {grid, kTileThreads, kBytes}, attention_backward_dq_kernel<kDim>, a);
}

}  // namespace

void run_repeatable_dq(CudaStream& stream, const AttentionBackward& op) {
  const PackedTables tables = PackedTables::of(op.query_documents);
  const auto* const workspace = op.workspace.as<const std::byte>();
  const std::int64_t heads = op.q.size(2), dim = op.q.size(3);
  const DqArguments a{
      .q = op.q,
      .k = op.k,
      .v = op.v,
      .out = op.out,
      .d_out = op.d_out,
      .dq = op.dq,
      .lse = op.lse.as<const float>(),
      .query_begin = op.query_documents.begin.as<const std::int32_t>(),
      .key_begin = op.key_documents.begin.as<const std::int32_t>(),
      .query_lengths = reinterpret_cast<const std::int32_t*>(workspace + tables.query_lengths),
      .key_lengths = reinterpret_cast<const std::int32_t*>(workspace + tables.key_lengths),
      .rows = op.q.size(1),
      .group = heads / op.k.size(2),
      .window = op.window,
      .capacity = static_cast<int>(op.query_documents.begin.numel()),
      .dim = static_cast<int>(dim),
      .scale = op.scale,
      .causal = op.causal,
  };
  if (dim <= 64) return launch_dq<64>(stream, a, heads);
  if (dim <= 128) return launch_dq<128>(stream, a, heads);
  launch_dq<256>(stream, a, heads);
}

}  // namespace megalith

// Backward attention. Compute-bound: five products per tile of up to 64 queries and 64 keys. dq, dk and dv of one head
// are summed in fp32 workspace and rounded once. Deterministic: tiles are visited in ascending order of (query head,
// key tile, query tile).
#include <memory>

#include "core/ops/attention_tiles.h"

namespace megalith {

namespace {

using attention::HeadRows;
using attention::kKeyTile;
using simd::F32x8;

constexpr std::int64_t kQueryTile = kKeyTile;  // so that only tiles on the diagonal are masked

struct Scratch {
  alignas(64) float keys[kKeyTile * kMaxHeadDim];         // [kKeyTile, padded D]
  alignas(64) float keys_across[kMaxHeadDim * kKeyTile];  // [D, kKeyTile]
  alignas(64) float values_across[kMaxHeadDim * kKeyTile];
  alignas(64) float p[kQueryTile * kKeyTile];   // scores, then probabilities
  alignas(64) float ds[kQueryTile * kKeyTile];  // d_out v^T, then the gradient of the scores
};

// One per worker thread, from its first use to its end.
Scratch& scratch() {
  thread_local const std::unique_ptr<Scratch> own = std::make_unique_for_overwrite<Scratch>();
  return *own;
}

struct Tile {
  std::int64_t queries, keys;  // number of rows and columns
  std::int64_t dim, padded;
  bool diagonal;  // row i sees columns 0 .. i only; else all
  // Of the tile's rows:
  const float* lse;
  const float* delta;
  const float* q;  // times scale
  const float* d_out;

  std::int64_t visible(std::int64_t row) const { return diagonal ? std::min(keys, row + 1) : keys; }
};

// P = exp(score - lse) and dS = P (dP - delta) for one row; columns from `visible` to the end of the tile become 0.
void finish_row(const Tile& tile, std::int64_t row, Scratch& s) {
  const F32x8 lse = simd::set1(tile.lse[row]);
  const F32x8 delta = simd::set1(tile.delta[row]);
  float* p = s.p + row * kKeyTile;
  float* ds = s.ds + row * kKeyTile;
  const std::int64_t visible = tile.visible(row);
  std::int64_t j = 0;
  for (; j < visible; j += simd::kLanes) {
    F32x8 probability = attention::exp_of_score(_mm256_sub_ps(simd::load(p + j), lse));
    F32x8 gradient = _mm256_mul_ps(probability, _mm256_sub_ps(simd::load(ds + j), delta));
    if (visible - j < simd::kLanes) {
      const F32x8 kept = _mm256_castsi256_ps(simd::lane_mask(visible - j));
      probability = _mm256_and_ps(probability, kept);
      gradient = _mm256_and_ps(gradient, kept);
    }
    simd::store(p + j, probability);
    simd::store(ds + j, gradient);
  }
  for (; j < kKeyTile; j += simd::kLanes) {
    simd::store(p + j, simd::zero());
    simd::store(ds + j, simd::zero());
  }
}

// P and dS of the tile, and dq += dS k. Only panels of 16 columns that some row of six sees are computed.
void run_queries(const Tile& tile, float* dq, Scratch& s) {
  for (std::int64_t i = 0; i < tile.queries; i += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, tile.queries - i);
    const std::int64_t visible = tile.visible(i + rows - 1);
    attention::Panels scores{.rows = rows,
                             .columns = visible,
                             .depth = tile.dim,
                             .a = tile.q + i * tile.padded,
                             .b = s.keys_across,
                             .b_stride = kKeyTile,
                             .c = s.p + i * kKeyTile,
                             .c_stride = kKeyTile,
                             .output = TileOutput::kStore};
    attention::multiply_dim_panels(scores, tile.padded);
    scores.a = tile.d_out + i * tile.padded;
    scores.b = s.values_across;
    scores.c = s.ds + i * kKeyTile;
    attention::multiply_dim_panels(scores, tile.padded);
    for (std::int64_t r = 0; r < rows; ++r) finish_row(tile, i + r, s);
    attention::multiply_panels<kKeyTile, 1>({.rows = rows,
                                             .columns = tile.padded,
                                             .depth = visible,
                                             .a = s.ds + i * kKeyTile,
                                             .b = s.keys,
                                             .b_stride = tile.padded,
                                             .c = dq + i * tile.padded,
                                             .c_stride = tile.padded,
                                             .output = TileOutput::kAdd});
  }
}

// dv += P^T d_out and dk += dS^T (scale q).
void run_keys(const Tile& tile, float* dk, float* dv, Scratch& s) {
  for (std::int64_t i = 0; i < tile.keys; i += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, tile.keys - i);
    const std::int64_t first = tile.diagonal ? i : 0;  // queries before do not see these keys
    const std::int64_t depth = tile.queries - first;
    if (depth <= 0) break;
    attention::Panels sum{.rows = rows,
                          .columns = tile.padded,
                          .depth = depth,
                          .a = s.p + first * kKeyTile + i,
                          .b = tile.d_out + first * tile.padded,
                          .b_stride = tile.padded,
                          .c = dv + i * tile.padded,
                          .c_stride = tile.padded,
                          .output = TileOutput::kAdd};
    attention::multiply_panels<1, kKeyTile>(sum);
    sum.a = s.ds + first * kKeyTile + i;
    sum.b = tile.q + first * tile.padded;
    sum.c = dk + i * tile.padded;
    attention::multiply_panels<1, kKeyTile>(sum);
  }
}

// fp32 of one kv head (sums dk, dv, each [U, padded D]) and of one query head (sum dq, scaled q, d_out, [S, padded D]).
struct Workspace {
  float *dq, *dk, *dv, *q, *d_out;
};

template <class T>
struct Head {
  HeadRows<const T> q, k, v, d_out;
  const float *lse, *delta;
  std::int64_t rows, keys, dim;
  bool causal;
  float scale;
};

// All tiles of one query head: w.dq, and what it adds to w.dk and w.dv.
template <class T>
void run_head(const Head<T>& head, const Workspace& w, Scratch& s) {
  const std::int64_t padded = attention::padded_dim(head.dim);
  pack_rows(head.q.lines(0, head.rows, head.dim), padded, w.q, padded);
  attention::scale_row(w.q, head.rows * padded, head.scale);
  pack_rows(head.d_out.lines(0, head.rows, head.dim), padded, w.d_out, padded);
  std::fill_n(w.dq, head.rows * padded, 0.0f);
  for (std::int64_t key = 0; key < head.keys; key += kKeyTile) {
    const std::int64_t keys = std::min<std::int64_t>(kKeyTile, head.keys - key);
    pack_rows(head.k.lines(key, keys, head.dim), padded, s.keys, padded);
    pack_across<kKeyTile>(head.k.lines(key, keys, head.dim), s.keys_across);
    pack_across<kKeyTile>(head.v.lines(key, keys, head.dim), s.values_across);
    for (std::int64_t query = head.causal ? key : 0; query < head.rows; query += kQueryTile) {
      const std::int64_t queries = std::min(kQueryTile, head.rows - query);
      const Tile tile{.queries = queries,
                      .keys = keys,
                      .dim = head.dim,
                      .padded = padded,
                      .diagonal = head.causal && query == key,
                      .lse = head.lse + query,
                      .delta = head.delta + query,
                      .q = w.q + query * padded,
                      .d_out = w.d_out + query * padded};
      run_queries(tile, w.dq + query * padded, s);
      run_keys(tile, w.dk + key * padded, w.dv + key * padded, s);
    }
  }
}

template <class T>
void write_rows(const float* sums, std::int64_t rows, std::int64_t dim, float factor, const HeadRows<T>& out) {
  const std::int64_t padded = attention::padded_dim(dim);
  for (std::int64_t i = 0; i < rows; ++i) {
    attention::store_scaled(sums + i * padded, dim, factor, out.data + i * out.stride);
  }
}

// delta[s] = sum over D of d_out * out, for one head.
template <class T>
void write_delta(const HeadRows<const T>& out, const HeadRows<const T>& d_out, std::int64_t rows, std::int64_t dim,
                 float* delta) {
  for (std::int64_t i = 0; i < rows; ++i) {
    F32x8 sum = simd::zero();
    const Row row = out.data + i * out.stride, d_row = d_out.data + i * d_out.stride;
    for_each_element(dim, [&](auto d) { sum = fma(row[d], d_row[d], sum); });
    delta[i] = simd::horizontal_sum(sum);
  }
}

template <class T>
void run_backward(const AttentionBackward& op) {
  const std::int64_t rows = op.q.size(1), keys = op.k.size(1), heads = op.q.size(2), dim = op.q.size(3);
  const std::int64_t kv_heads = op.k.size(2), group = heads / kv_heads;
  const std::int64_t of_query = rows * attention::padded_dim(dim), of_key = keys * attention::padded_dim(dim);
  float* const dq = op.workspace.as<float>();
  float* const dk = dq + of_query;
  float* const q = dk + 2 * of_key;
  const Workspace w{.dq = dq, .dk = dk, .dv = dk + of_key, .q = q, .d_out = q + of_query};
  for (std::int64_t b = 0; b < op.q.size(0); ++b) {
    for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
      std::fill_n(w.dk, 2 * of_key, 0.0f);
      for (std::int64_t n = kv * group; n < (kv + 1) * group; ++n) {
        const std::int64_t statistics = (b * heads + n) * rows;
        float* delta = op.delta.as<float>() + statistics;
        write_delta<T>({op.out, b, n}, {op.d_out, b, n}, rows, dim, delta);
        run_head(Head<T>{.q = {op.q, b, n},
                         .k = {op.k, b, kv},
                         .v = {op.v, b, kv},
                         .d_out = {op.d_out, b, n},
                         .lse = op.lse.as<const float>() + statistics,
                         .delta = delta,
                         .rows = rows,
                         .keys = keys,
                         .dim = dim,
                         .causal = op.causal,
                         .scale = op.scale},
                 w, scratch());
        write_rows<T>(w.dq, rows, dim, op.scale, {op.dq, b, n});
      }
      write_rows<T>(w.dk, keys, dim, 1.0f, {op.dk, b, kv});
      write_rows<T>(w.dv, keys, dim, 1.0f, {op.dv, b, kv});
    }
  }
}

}  // namespace

void run(CpuStream& stream, const AttentionBackward& op) {
  stream.enqueue([op] {
    if (op.q.dtype == DType::kFp32) return run_backward<float>(op);
    run_backward<bf16>(op);
  });
}

}  // namespace megalith

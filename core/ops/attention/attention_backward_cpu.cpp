// Backward attention. Compute-bound: five products per tile of up to 64 queries and 64 keys. dq, dk and dv of one head
// are summed in fp32 workspace and rounded once. Deterministic: tiles are visited in ascending order of (query head,
// key tile, query tile).
#include "core/ops/attention/attention_tiles.h"
#include "core/ops/dispatch.h"

namespace megalith {

namespace {

using attention::HeadRows;
using attention::kKeyTile;

constexpr std::int64_t kQueryTile = kKeyTile;  // only tiles on the diagonal are masked

struct BackwardScratch {
  alignas(64) float keys[kKeyTile * kMaxHeadDim];         // [kKeyTile, padded D]
  alignas(64) float keys_across[kMaxHeadDim * kKeyTile];  // [D, kKeyTile]
  alignas(64) float values_across[kMaxHeadDim * kKeyTile];
  alignas(64) float p[kQueryTile * kKeyTile];   // scores, then probabilities
  alignas(64) float ds[kQueryTile * kKeyTile];  // d_out v^T, then the gradient of the scores
};

struct Tile {
  std::int64_t queries, keys;  // number of rows and columns
  std::int64_t dim, padded;
  bool diagonal;              // row i sees columns up to i only; otherwise all
  std::int64_t first_of_row;  // first column that row 0 sees, one more each row; may be negative
  // Rows of the tile:
  const float* lse;
  const float* delta;
  const float* q;  // scaled
  const float* d_out;

  std::int64_t visible(std::int64_t row) const { return diagonal ? std::min(keys, row + 1) : keys; }
  std::int64_t hidden(std::int64_t row) const { return std::clamp<std::int64_t>(first_of_row + row, 0, visible(row)); }
};

// Computes P = exp(score - lse) and dS = P (dP - delta) for one row; columns that it does not see become 0.
void finish_row(const Tile& tile, std::int64_t row, BackwardScratch& s) {
  const std::int64_t visible = tile.visible(row);
  float *const p = s.p + row * kKeyTile, *const ds = s.ds + row * kKeyTile;
  for_each_element(visible, [=, lse = tile.lse[row], delta = tile.delta[row], p = Row(p), ds = Row(ds)](auto j) {
    const F32x8 probability = attention::exp_of_score(p[j] - lse);
    p.set(j, probability);
    ds.set(j, probability * (ds[j] - delta));
  });
  const std::int64_t hidden = tile.hidden(row);
  for (float* const x : {p, ds}) {
    std::fill_n(x, hidden, 0.0f);
    std::fill(x + visible, x + kKeyTile, 0.0f);
  }
}

// Computes P and dS of the tile, and dq += dS k. Skips panels of 16 columns that no row of six sees.
void run_queries(const Tile& tile, float* dq, BackwardScratch& s) {
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
    attention::multiply_panels({.rows = rows,
                                .columns = tile.padded,
                                .depth = visible,
                                .a = s.ds + i * kKeyTile,
                                .b = s.keys,
                                .b_stride = tile.padded,
                                .c = dq + i * tile.padded,
                                .c_stride = tile.padded,
                                .output = TileOutput::kAdd},
                               kKeyTile, 1);
  }
}

// dv += P^T d_out and dk += dS^T (scale q).
void run_keys(const Tile& tile, float* dk, float* dv, BackwardScratch& s) {
  for (std::int64_t i = 0; i < tile.keys; i += kTileRows) {
    const std::int64_t rows = std::min(kTileRows, tile.keys - i);
    const std::int64_t first = tile.diagonal ? i : 0;  // earlier queries do not see these keys
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
    attention::multiply_panels(sum, 1, kKeyTile);
    sum.a = s.ds + first * kKeyTile + i;
    sum.b = tile.q + first * tile.padded;
    sum.c = dk + i * tile.padded;
    attention::multiply_panels(sum, 1, kKeyTile);
  }
}

// fp32 of one kv head (sums dk, dv, each [U, padded D]) and of one query head (sum dq, scaled q, d_out, [S, padded D]).
struct Workspace {
  float *dq, *dk, *dv, *q, *d_out;
};

// Runs all tiles of one query head: sets w.dq, and adds to w.dk and w.dv.
template <class T>
void run_head(const AttentionBackward& op, std::int64_t b, std::int64_t n, std::int64_t kv, const Workspace& w,
              BackwardScratch& s) {
  const HeadRows<const T> k(op.k, b, kv), v(op.v, b, kv), out(op.out, b, n), d_out(op.d_out, b, n);
  const std::int64_t rows = op.q.size(1), padded = attention::padded_dim(k.dim);
  const float* const lse = attention::head_statistics(op.lse, b, n);
  float* const delta = attention::head_statistics(op.delta, b, n);
  const std::int64_t window = op.window > 0 ? op.window : rows + op.k.size(1);  // the latter hides nothing
  for (std::int64_t i = 0; i < rows; ++i) {
    F32x8 sum = simd::zero();
    for_each_element(k.dim, [&, x = out[i], dx = d_out[i]](auto d) { sum = fma(x[d], dx[d], sum); });
    delta[i] = simd::horizontal_sum(sum);
  }
  attention::pack_scaled(HeadRows<const T>(op.q, b, n), 0, rows, op.scale, w.q);
  pack_rows(d_out.lines(0, rows), padded, w.d_out, padded);
  std::fill_n(w.dq, rows * padded, 0.0f);
  for (std::int64_t key = 0; key < op.k.size(1); key += kKeyTile) {
    const std::int64_t keys = std::min<std::int64_t>(kKeyTile, op.k.size(1) - key);
    pack_rows(k.lines(key, keys), padded, s.keys, padded);
    pack_across<kKeyTile>(k.lines(key, keys), s.keys_across);
    pack_across<kKeyTile>(v.lines(key, keys), s.values_across);
    const std::int64_t end = std::min(rows, key + keys - 1 + window);  // the first row that sees none of these keys
    for (std::int64_t query = op.causal ? key : 0; query < end; query += kQueryTile) {
      const Tile tile{.queries = std::min(kQueryTile, rows - query),
                      .keys = keys,
                      .dim = k.dim,
                      .padded = padded,
                      .diagonal = op.causal && query == key,
                      .first_of_row = query - key + 1 - window,
                      .lse = lse + query,
                      .delta = delta + query,
                      .q = w.q + query * padded,
                      .d_out = w.d_out + query * padded};
      run_queries(tile, w.dq + query * padded, s);
      run_keys(tile, w.dk + key * padded, w.dv + key * padded, s);
    }
  }
}

template <class T>
void write_rows(const float* sums, const Tensor& to, std::int64_t b, std::int64_t head, float factor) {
  const HeadRows<T> out(to, b, head);
  for (std::int64_t i = 0; i < to.size(1); ++i) out.store(i, sums + i * attention::padded_dim(out.dim), factor);
}

void differentiate(const AttentionBackward& op) {
  const std::int64_t kv_heads = op.k.size(2), group = op.q.size(2) / kv_heads,
                     padded = attention::padded_dim(op.q.size(3));
  const std::int64_t of_query = op.q.size(1) * padded, of_key = op.k.size(1) * padded;
  float* const dq = op.workspace.as<float>();
  float* const dk = dq + of_query;
  float* const q = dk + 2 * of_key;
  const Workspace w{.dq = dq, .dk = dk, .dv = dk + of_key, .q = q, .d_out = q + of_query};
  visit_float(op.q.dtype, [&]<class T>(T) {
    for (std::int64_t b = 0; b < op.q.size(0); ++b) {
      for (std::int64_t kv = 0; kv < kv_heads; ++kv) {
        std::fill_n(w.dk, 2 * of_key, 0.0f);
        for (std::int64_t n = kv * group; n < (kv + 1) * group; ++n) {
          run_head<T>(op, b, n, kv, w, thread_scratch<BackwardScratch>());
          write_rows<T>(w.dq, op.dq, b, n, op.scale);
        }
        write_rows<T>(w.dk, op.dk, b, kv, 1.0f);
        write_rows<T>(w.dv, op.dv, b, kv, 1.0f);
      }
    }
  });
}

}  // namespace

void compute(const AttentionBackward& op) { attention::for_each_document(op, differentiate); }

}  // namespace megalith

// Forward attention. Compute-bound. For one head and kQueryBlock query rows, all key tiles are visited once. Scores of
// six rows against a key tile become probabilities while in L1. Deterministic: a row's result depends on its position
// in its document, its query and the preceding keys, not on the number of rows computed at once.
#include "core/ops/attention/attention_tiles.h"
#include "core/ops/attention/rope.h"
#include "core/ops/dispatch.h"
#include "core/ops/elementwise/elementwise.h"

namespace megalith {

namespace {

using attention::HeadRows;
using attention::kKeyTile;

constexpr std::int64_t kQueryBlock = 128;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct ForwardScratch {
  alignas(64) float keys[kMaxHeadDim * kKeyTile];    // transposed: [D, kKeyTile]
  alignas(64) float values[kKeyTile * kMaxHeadDim];  // [kKeyTile, padded D]
  alignas(64) float queries[kQueryBlock * kMaxHeadDim];
  alignas(64) float sums[kQueryBlock * kMaxHeadDim];  // sums of probability times value
  alignas(64) float scores[kTileRows * kKeyTile];
  float largest[kQueryBlock];  // the row's largest score so far
  float total[kQueryBlock];    // sum of exp(score - largest)
};

// Sets scores ahead of `first` and from `visible` on of `columns` (a multiple of 16) to -inf; returns the largest.
float mask_row(float* scores, std::int64_t first, std::int64_t visible, std::int64_t columns) {
  std::fill_n(scores, first, kLowest);
  for (std::int64_t j = visible / 8 * 8; j < columns; j += 8) {
    const F32x8 kept = _mm256_castsi256_ps(simd::lane_mask(visible - j));
    simd::store(scores + j, _mm256_blendv_ps(simd::set1(kLowest), simd::load(scores + j), kept));
  }
  F32x8 most0 = simd::load(scores), most1 = simd::load(scores + 8);
  for (std::int64_t j = 16; j < columns; j += 16) {
    most0 = _mm256_max_ps(most0, simd::load(scores + j));
    most1 = _mm256_max_ps(most1, simd::load(scores + j + 8));
  }
  return simd::horizontal_max(_mm256_max_ps(most0, most1));
}

// Turns scores into probabilities relative to exp(largest); returns their sum.
float exponentiate_row(float* scores, std::int64_t columns, float largest) {
  F32x8 total0 = simd::zero(), total1 = simd::zero();
  for (std::int64_t j = 0; j < columns; j += 16) {
    const F32x8 p0 = attention::exp_of_score(simd::load(scores + j) - largest);
    const F32x8 p1 = attention::exp_of_score(simd::load(scores + j + 8) - largest);
    simd::store(scores + j, p0);
    simd::store(scores + j + 8, p1);
    total0 += p0;
    total1 += p1;
  }
  return simd::horizontal_sum(total0 + total1);
}

struct Group {
  std::int64_t first, count;     // query rows within the block; at most six
  std::int64_t visible;          // keys of the tile up to row `first`'s own; may be negative, or more than
  std::int64_t most;             // keys of the tile
  std::int64_t window;           // number of these keys that a row sees, the last ones
  std::int64_t columns, padded;  // padded sizes of scores and of sums

  std::int64_t end(std::int64_t row) const { return std::clamp<std::int64_t>(visible + row, 0, most); }
  std::int64_t begin(std::int64_t row) const { return std::clamp<std::int64_t>(visible + row - window, 0, end(row)); }
};

// Turns the group's scores into probabilities and rescales the sums of its rows. A row that sees nothing of the tile
// keeps its sums: its probabilities are 0.
void update_group(const Group& g, ForwardScratch& s) {
  alignas(32) float largest[simd::kLanes] = {}, factor[simd::kLanes];
  for (std::int64_t r = 0; r < g.count; ++r) {
    const float most = mask_row(s.scores + r * kKeyTile, g.begin(r), g.end(r), g.columns);
    largest[r] = std::max(s.largest[g.first + r], most);
  }
  simd::store(factor, simd::exp_nonpositive(simd::load_partial(s.largest + g.first, g.count) - simd::load(largest)));
  for (std::int64_t r = 0; r < g.count; ++r) {
    const std::int64_t row = g.first + r;
    if (g.begin(r) == g.end(r)) {
      std::fill_n(s.scores + r * kKeyTile, g.columns, 0.0f);
      continue;
    }
    const float total = exponentiate_row(s.scores + r * kKeyTile, g.columns, largest[r]);
    if (largest[r] != s.largest[row]) {
      const Row sum = s.sums + row * g.padded;
      for_each_element(g.padded, [=, f = factor[r]](auto d) { sum.set(d, sum[d] * f); });
      s.total[row] *= factor[r];
      s.largest[row] = largest[r];
    }
    s.total[row] += total;
  }
}

struct KeyTile {
  std::int64_t position;  // keys of the tile ahead of the first row's own
  std::int64_t keys, window, dim;
};

// Adds a tile of keys to `rows` query rows. Each row sees the last `window` keys up to its own.
void add_tile(std::int64_t rows, const KeyTile& tile, ForwardScratch& s) {
  const auto [position, keys, window, dim] = tile;
  const std::int64_t padded = attention::padded_dim(dim);
  for (std::int64_t i = 0; i < rows; i += kTileRows) {
    const std::int64_t count = std::min(kTileRows, rows - i);
    const std::int64_t visible = std::min(keys, position + i + count);  // keys visible to the last row
    if (visible <= 0 || position + i + 1 - window >= keys) continue;
    const std::int64_t columns = round_up(visible, kTileColumns);
    attention::multiply_dim_panels({.rows = count,
                                    .columns = columns,
                                    .depth = dim,
                                    .a = s.queries + i * padded,
                                    .b = s.keys,
                                    .b_stride = kKeyTile,
                                    .c = s.scores,
                                    .c_stride = kKeyTile,
                                    .output = TileOutput::kStore},
                                   padded);
    update_group({.first = i,
                  .count = count,
                  .visible = position + i + 1,
                  .most = keys,
                  .window = window,
                  .columns = columns,
                  .padded = padded},
                 s);
    attention::multiply_panels({.rows = count,
                                .columns = padded,
                                .depth = visible,
                                .a = s.scores,
                                .b = s.values,
                                .b_stride = padded,
                                .c = s.sums + i * padded,
                                .c_stride = padded,
                                .output = TileOutput::kAdd},
                               kKeyTile, 1);
  }
}

// Runs head n of sample b. Its row 0 has position `position` among the keys: a row sees keys up to its own.
template <class T>
void attend(const AttentionForward& op, std::int64_t position, std::int64_t b, std::int64_t n, ForwardScratch& s) {
  const std::int64_t kv = n / (op.q.size(2) / op.k.size(2)), all = op.q.size(1), dim = op.q.size(3);
  const HeadRows<const T> q(op.q, b, n), k(op.k, b, kv), v(op.v, b, kv);
  const HeadRows<T> out(op.out, b, n);
  float* const lse = op.lse ? attention::head_statistics(op.lse, b, n) : nullptr;
  const std::int64_t padded = attention::padded_dim(dim), window = op.window > 0 ? op.window : position + all;
  for (std::int64_t row = 0; row < all; row += kQueryBlock, position += kQueryBlock) {
    const std::int64_t rows = std::min(kQueryBlock, all - row);
    attention::pack_scaled(q, row, rows, op.scale, s.queries);
    std::fill_n(s.sums, rows * padded, 0.0f);
    std::fill_n(s.total, rows, 0.0f);
    std::fill_n(s.largest, rows, kLowest);
    const std::int64_t keys = std::min(op.k.size(1), position + rows);
    const std::int64_t first_key = std::max<std::int64_t>(0, position + 1 - window) / kKeyTile * kKeyTile;
    for (std::int64_t key = first_key; key < keys; key += kKeyTile) {
      const std::int64_t count = std::min<std::int64_t>(kKeyTile, keys - key);
      pack_across<kKeyTile>(k.lines(key, count), s.keys);
      pack_rows(v.lines(key, count), padded, s.values, padded);
      add_tile(rows, {.position = position - key, .keys = count, .window = window, .dim = dim}, s);
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      out.store(row + i, s.sums + i * padded, keys == 0 ? 0.0f : 1.0f / s.total[i]);
      if (lse != nullptr) lse[row + i] = s.largest[i] + simd::log(s.total[i]);
    }
  }
}

void attend_all(const AttentionForward& op, std::int64_t position) {
  visit_float(op.q.dtype, [&]<class T>(T) {
    for (std::int64_t b = 0; b < op.q.size(0); ++b) {
      for (std::int64_t n = 0; n < op.q.size(2); ++n) attend<T>(op, position, b, n, thread_scratch<ForwardScratch>());
    }
  });
}

// Reads the first row's position, known to the device only.
std::int64_t read_start(const std::int32_t* start, std::int64_t rows, std::int64_t cache_rows) {
  if (*start < 0 || *start + rows > cache_rows) refuse_start(*start, rows, cache_rows);
  return *start;
}

}  // namespace

void compute(const AttentionForward& op) {
  attention::for_each_document(
      op, [](const AttentionForward& part) { attend_all(part, part.causal ? 0 : part.k.size(1)); });
}

void compute(const CachedAttention& op) {
  const std::int64_t start = read_start(op.start, op.q.size(1), op.k_cache.size(1));
  attend_all({.q = op.q, .k = op.k_cache, .v = op.v_cache, .out = op.out, .scale = op.scale, .window = op.window},
             start);
}

void compute(const DecodeAttention& op) {
  const std::int64_t start = read_start(op.start, 1, op.k_cache.size(1));
  compute(KvCacheAppend{.k = op.k, .v = op.v, .k_cache = op.k_cache, .v_cache = op.v_cache, .start = op.start});
  Tensor q = op.q;
  if (op.rotary_dim != 0) {
    q = Tensor(op.workspace.data, op.q.dtype, op.q.shape);
    const Tensor k = op.k_cache.slice(1, start, 1);
    Rope rope{.theta = op.theta, .rotary_dim = op.rotary_dim, .scaling = op.scaling, .start = op.start};
    rope.x = op.q, rope.y = q;
    compute(rope);
    rope.x = k, rope.y = k;
    compute(rope);
  }
  compute(CachedAttention{.q = q,
                          .k_cache = op.k_cache,
                          .v_cache = op.v_cache,
                          .out = op.out,
                          .start = op.start,
                          .scale = op.scale,
                          .window = op.window});
}

void compute(const KvCacheAppend& op) {
  const std::int64_t rows = op.k.size(1), start = read_start(op.start, rows, op.k_cache.size(1));
  compute(Copy{.src = op.k, .dst = op.k_cache.slice(1, start, rows)});
  compute(Copy{.src = op.v, .dst = op.v_cache.slice(1, start, rows)});
}

}  // namespace megalith

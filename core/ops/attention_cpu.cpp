// Forward attention. Compute-bound. For one head and kQueryBlock query rows, all key tiles are visited once; scores of
// six rows against a key tile are turned into probabilities while in L1. Deterministic: the result of a row depends on
// its position, its query and the keys before it, not on how many rows are computed at once.
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "core/ops/attention_tiles.h"

namespace megalith {

namespace {

using attention::HeadRows;
using attention::kKeyTile;
using simd::F32x8;

constexpr std::int64_t kQueryBlock = 128;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

struct Scratch {
  alignas(64) float keys[kMaxHeadDim * kKeyTile];    // transposed: [D, kKeyTile]
  alignas(64) float values[kKeyTile * kMaxHeadDim];  // [kKeyTile, padded D]
  alignas(64) float queries[kQueryBlock * kMaxHeadDim];
  alignas(64) float sums[kQueryBlock * kMaxHeadDim];  // of probability times value
  alignas(64) float scores[kTileRows * kKeyTile];
  float largest[kQueryBlock];  // score of the row so far
  float total[kQueryBlock];    // of exp(score - largest)
};

// One per worker thread, from its first use to its end.
Scratch& scratch() {
  thread_local const std::unique_ptr<Scratch> own = std::make_unique_for_overwrite<Scratch>();
  return *own;
}

// Scores beyond the first `visible` of `columns` (a multiple of 16) become -inf; returns the largest.
float mask_row(float* scores, std::int64_t visible, std::int64_t columns) {
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

// Scores become probabilities relative to exp(largest); returns their sum.
float exponentiate_row(float* scores, std::int64_t columns, float largest) {
  const F32x8 shift = simd::set1(largest);
  F32x8 total0 = simd::zero(), total1 = simd::zero();
  for (std::int64_t j = 0; j < columns; j += 16) {
    const F32x8 p0 = attention::exp_of_score(_mm256_sub_ps(simd::load(scores + j), shift));
    const F32x8 p1 = attention::exp_of_score(_mm256_sub_ps(simd::load(scores + j + 8), shift));
    simd::store(scores + j, p0);
    simd::store(scores + j + 8, p1);
    total0 = _mm256_add_ps(total0, p0);
    total1 = _mm256_add_ps(total1, p1);
  }
  return simd::horizontal_sum(_mm256_add_ps(total0, total1));
}

struct Group {
  std::int64_t first, count;     // query rows within the block; at most six
  std::int64_t visible;          // keys of the tile that row `first` sees; may be negative, or more than
  std::int64_t most;             // keys of the tile
  std::int64_t columns, padded;  // of scores and of sums
};

// Turns the group's scores into probabilities and rescales what its rows have summed so far. A row that sees nothing of
// the tile keeps its sums: its probabilities are all 0.
void update_group(const Group& g, Scratch& s) {
  alignas(32) float largest[simd::kLanes] = {}, total[simd::kLanes] = {}, factor[simd::kLanes];
  for (std::int64_t r = 0; r < g.count; ++r) {
    const std::int64_t visible = std::clamp<std::int64_t>(g.visible + r, 0, g.most);
    largest[r] = std::max(s.largest[g.first + r], mask_row(s.scores + r * kKeyTile, visible, g.columns));
  }
  const F32x8 change = _mm256_sub_ps(simd::load_partial(s.largest + g.first, g.count), simd::load(largest));
  simd::store(factor, simd::exp_nonpositive(change));
  for (std::int64_t r = 0; r < g.count; ++r) {
    total[r] = exponentiate_row(s.scores + r * kKeyTile, g.columns, largest[r]);
  }
  for (std::int64_t r = 0; r < g.count; ++r) {
    const std::int64_t row = g.first + r;
    if (largest[r] != s.largest[row]) {
      attention::scale_row(s.sums + row * g.padded, g.padded, factor[r]);
      s.total[row] *= factor[r];
      s.largest[row] = largest[r];
    }
    s.total[row] += total[r];
  }
}

struct KeyTile {
  std::int64_t first, count;
};

// Adds one key tile to `rows` query rows of which the first stands at `position`.
void add_tile(std::int64_t rows, std::int64_t position, const KeyTile& tile, std::int64_t dim, Scratch& s) {
  const std::int64_t padded = attention::padded_dim(dim);
  for (std::int64_t i = 0; i < rows; i += kTileRows) {
    const std::int64_t count = std::min(kTileRows, rows - i);
    const std::int64_t visible = std::min(tile.count, position + i + count - tile.first);  // to the last row
    if (visible <= 0) continue;
    const std::int64_t columns = (visible + kTileColumns - 1) / kTileColumns * kTileColumns;
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
                  .visible = position + i + 1 - tile.first,
                  .most = tile.count,
                  .columns = columns,
                  .padded = padded},
                 s);
    attention::multiply_panels<kKeyTile, 1>({.rows = count,
                                             .columns = padded,
                                             .depth = visible,
                                             .a = s.scores,
                                             .b = s.values,
                                             .b_stride = padded,
                                             .c = s.sums + i * padded,
                                             .c_stride = padded,
                                             .output = TileOutput::kAdd});
  }
}

template <class T>
struct Head {
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  float* lse;  // of row 0; may be null
  std::int64_t rows, keys, dim;
  std::int64_t position;  // of row 0 among the keys, of which a row sees those up to its own
  float scale;
};

template <class T>
void attend(const Head<T>& head, Scratch& s) {
  const std::int64_t padded = attention::padded_dim(head.dim);
  for (std::int64_t row = 0; row < head.rows; row += kQueryBlock) {
    const std::int64_t rows = std::min(kQueryBlock, head.rows - row);
    pack_rows(head.q.lines(row, rows, head.dim), padded, s.queries, padded);
    attention::scale_row(s.queries, rows * padded, head.scale);
    std::fill_n(s.sums, rows * padded, 0.0f);
    std::fill_n(s.total, rows, 0.0f);
    std::fill_n(s.largest, rows, kLowest);
    const std::int64_t position = head.position + row;
    const std::int64_t keys = std::min(head.keys, position + rows);
    for (std::int64_t key = 0; key < keys; key += kKeyTile) {
      const std::int64_t count = std::min<std::int64_t>(kKeyTile, keys - key);
      pack_across<kKeyTile>(head.k.lines(key, count, head.dim), s.keys);
      pack_rows(head.v.lines(key, count, head.dim), padded, s.values, padded);
      add_tile(rows, position, {.first = key, .count = count}, head.dim, s);
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      attention::store_scaled(s.sums + i * padded, head.dim, 1.0f / s.total[i],
                              head.out.data + (row + i) * head.out.stride);
      if (head.lse != nullptr) head.lse[row + i] = s.largest[i] + simd::log(s.total[i]);
    }
  }
}

struct Problem {
  const Tensor &q, &k, &v, &out;
  float* lse;
  std::int64_t position;
  float scale;
};

template <class T>
void attend_all(const Problem& p) {
  const std::int64_t samples = p.q.size(0), rows = p.q.size(1), heads = p.q.size(2);
  const std::int64_t group = heads / p.k.size(2);
  for (std::int64_t b = 0; b < samples; ++b) {
    for (std::int64_t n = 0; n < heads; ++n) {
      attend(Head<T>{.q = {p.q, b, n},
                     .k = {p.k, b, n / group},
                     .v = {p.v, b, n / group},
                     .out = {p.out, b, n},
                     .lse = p.lse == nullptr ? nullptr : p.lse + (b * heads + n) * rows,
                     .rows = rows,
                     .keys = p.k.size(1),
                     .dim = p.q.size(3),
                     .position = p.position,
                     .scale = p.scale},
             scratch());
    }
  }
}

void attend_as(DType dtype, const Problem& problem) {
  if (dtype == DType::kFp32) return attend_all<float>(problem);
  attend_all<bf16>(problem);
}

// The first row's position, which only the device knows.
std::int64_t read_start(const std::int32_t* start, std::int64_t rows, std::int64_t cache_rows) {
  if (*start < 0 || *start + rows > cache_rows) refuse_start(*start, rows, cache_rows);
  return *start;
}

void append(const Tensor& x, const Tensor& cache, std::int64_t start) {
  const std::size_t bytes = static_cast<std::size_t>(x.size(3)) * size_of(x.dtype);
  const auto item = static_cast<std::int64_t>(size_of(x.dtype));
  for (std::int64_t b = 0; b < x.size(0); ++b) {
    for (std::int64_t s = 0; s < x.size(1); ++s) {
      for (std::int64_t n = 0; n < x.size(2); ++n) {
        std::memcpy(
            cache.as<std::byte>() + (b * cache.stride(0) + (start + s) * cache.stride(1) + n * cache.stride(2)) * item,
            x.as<std::byte>() + (b * x.stride(0) + s * x.stride(1) + n * x.stride(2)) * item, bytes);
      }
    }
  }
}

}  // namespace

void run(CpuStream& stream, const AttentionForward& op) {
  stream.enqueue([op] {
    attend_as(op.q.dtype, {.q = op.q,
                           .k = op.k,
                           .v = op.v,
                           .out = op.out,
                           .lse = op.lse.as<float>(),
                           .position = op.causal ? 0 : op.k.size(1),
                           .scale = op.scale});
  });
}

void run(CpuStream& stream, const CachedAttention& op) {
  stream.enqueue([op] {
    const std::int64_t start = read_start(op.start, op.q.size(1), op.k_cache.size(1));
    attend_as(op.q.dtype, {.q = op.q,
                           .k = op.k_cache,
                           .v = op.v_cache,
                           .out = op.out,
                           .lse = nullptr,
                           .position = start,
                           .scale = op.scale});
  });
}

void run(CpuStream& stream, const KvCacheAppend& op) {
  stream.enqueue([op] {
    const std::int64_t start = read_start(op.start, op.k.size(1), op.k_cache.size(1));
    append(op.k, op.k_cache, start);
    append(op.v, op.v_cache, start);
  });
}

}  // namespace megalith

// Packing of matrix lines, as fp32, into the order of micro_kernel.h. For *_cpu.cpp files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/ops/simd_math.h"

namespace megalith {

// Floats past the last packed sliver that pack_* may write if Width is not a multiple of 8.
inline constexpr std::int64_t kPackSlack = 8;

// Transposes: rows[i] lane j becomes rows[j] lane i.
inline void transpose8(simd::F32x8 (&rows)[8]) {
  simd::F32x8 pairs[8], quads[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
  }
}

// Scratch of a worker thread, from its first use to its end.
template <class Scratch>
Scratch& thread_scratch() {
  thread_local const std::unique_ptr<Scratch> own = std::make_unique_for_overwrite<Scratch>();
  return *own;
}

constexpr std::int64_t round_up(std::int64_t count, std::int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// `lines` lines of `depth` elements, at distance `stride`.
template <class T>
struct Lines {
  const T* data;
  std::int64_t stride;
  std::int64_t lines;
  std::int64_t depth;
};

// out[p * out_stride + line] = x[line][p] for line < Width, p < depth: a transposition. Missing lines become 0.
template <int Width, class T>
void pack_across(const Lines<T>& x, float* out, std::int64_t out_stride = Width) {
  const std::int64_t lines = std::min<std::int64_t>(x.lines, Width);
  std::int64_t p = 0;
  for (; p + 8 <= x.depth; p += 8) {
    for (int first = 0; first < Width; first += 8) {
      simd::F32x8 rows[8];
      for (int i = 0; i < 8; ++i) {
        rows[i] = first + i < lines ? simd::load(x.data + (first + i) * x.stride + p) : simd::zero();
      }
      transpose8(rows);
      for (int i = 0; i < 8; ++i) simd::store(out + (p + i) * out_stride + first, rows[i]);
    }
  }
  for (; p < x.depth; ++p) {
    for (int i = 0; i < Width; ++i) out[p * out_stride + i] = i < lines ? to_float(x.data[i * x.stride + p]) : 0.0f;
  }
}

// out[line * Width + p] = x[line][p] for p < Width: a copy. Elements p >= depth become 0.
template <int Width, class T>
void pack_along(const Lines<T>& x, float* out) {
  const bool whole = x.depth >= (Width + 7) / 8 * 8;
  for (std::int64_t line = 0; line < x.lines; ++line) {
    const T* row = x.data + line * x.stride;
    for (int first = 0; first < Width; first += 8) {
      simd::F32x8 part = simd::zero();
      if (whole) {
        part = simd::load(row + first);
      } else if (x.depth > first) {
        part = simd::load_partial(row + first, std::min<std::int64_t>(8, x.depth - first));
      }
      simd::store(out + line * Width + first, part);
    }
  }
}

// out[line * out_stride + p] = x[line][p], 0 for depth <= p < padded; `padded` and out_stride are multiples of 8.
template <class T>
void pack_rows(const Lines<T>& x, std::int64_t padded, float* out, std::int64_t out_stride) {
  for (std::int64_t line = 0; line < x.lines; ++line) {
    const T* row = x.data + line * x.stride;
    float* out_row = out + line * out_stride;
    std::int64_t p = 0;
    for (; p + 8 <= x.depth; p += 8) simd::store(out_row + p, simd::load(row + p));
    if (p < x.depth) {
      simd::store(out_row + p, simd::load_partial(row + p, x.depth - p));
      p += 8;
    }
    for (; p < padded; p += 8) simd::store(out_row + p, simd::zero());
  }
}

}  // namespace megalith

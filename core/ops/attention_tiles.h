// What the forward and backward attention kernels share. For *_cpu.cpp files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/ops/attention.h"
#include "core/ops/micro_kernel.h"
#include "core/ops/simd_math.h"
#include "core/ops/tile_pack.h"

namespace megalith::attention {

inline constexpr int kKeyTile = 64;  // keys of a tile of scores; a multiple of kTileColumns

inline std::int64_t padded_dim(std::int64_t dim) { return (dim + kTileColumns - 1) / kTileColumns * kTileColumns; }

// The rows of one head of one sample of a [B, S, heads, D] tensor.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t stride;

  HeadRows(const Tensor& x, std::int64_t sample, std::int64_t head)
      : data(x.as<T>() + sample * x.stride(0) + head * x.stride(2)), stride(x.stride(1)) {}

  Lines<T> lines(std::int64_t first, std::int64_t count, std::int64_t dim) const {
    return {data + first * stride, stride, count, dim};
  }
};

// exp(x) for x <= 0, and NaN for NaN, so that a broken input is noticed.
inline simd::F32x8 exp_of_score(simd::F32x8 x) {
  return _mm256_or_ps(simd::exp_nonpositive(x), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

// c[i][j] (=|+=) sum over p < depth of a(i, p) b[p][j] for i < rows <= 6, j < columns; all strides of b and c are
// given, columns is rounded up to whole panels of 16.
inline void multiply_panels(std::int64_t rows, std::int64_t columns, std::int64_t depth, const TileOperand& a,
                            const float* b, std::int64_t b_stride, float* c, std::int64_t c_stride, TileOutput output) {
  for (std::int64_t j = 0; j < columns; j += kTileColumns) {
    multiply_rows(rows, depth, a, b + j, b_stride, nullptr, c + j, c_stride, output);
  }
}

// row[j] *= factor for j < length, a multiple of 8.
inline void scale_row(float* row, std::int64_t length, float factor) {
  const simd::F32x8 f = simd::set1(factor);
  for (std::int64_t j = 0; j < length; j += simd::kLanes) simd::store(row + j, _mm256_mul_ps(simd::load(row + j), f));
}

// out[line] = row * factor for each line, converted to T.
template <class T>
inline void store_scaled(const float* row, std::int64_t dim, float factor, T* out) {
  const simd::F32x8 f = simd::set1(factor);
  simd::for_each_vector(
      dim, [&](std::int64_t d, auto, auto store) { store(out + d, _mm256_mul_ps(simd::load(row + d), f)); });
}

}  // namespace megalith::attention

// What the forward and backward attention kernels share. For *_cpu.cpp files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/ops/attention.h"
#include "core/ops/loops.h"
#include "core/ops/micro_kernel.h"
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

// c[i][j] (=|+=) sum over p < depth of a(i, p) b[p][j] for i < rows <= 6 and j < columns, which is rounded up to whole
// panels of 16.
struct Panels {
  std::int64_t rows, columns, depth;
  const float* a;
  const float* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  TileOutput output;
};

// The strides of a are constants because that makes short products (depth 64) about 7 % faster.
template <std::int64_t RowStride, std::int64_t Step>
inline void multiply_panels(const Panels& p) {
  for (std::int64_t j = 0; j < p.columns; j += kTileColumns) {
    multiply_rows(p.rows, p.depth, {p.a, RowStride, Step}, p.b + j, p.b_stride, nullptr, p.c + j, p.c_stride, p.output);
  }
}

// a is [rows, row_stride] row-major; usual head dims have code of their own.
inline void multiply_dim_panels(const Panels& p, std::int64_t row_stride) {
  switch (row_stride) {
    case 32: return multiply_panels<32, 1>(p);
    case 64: return multiply_panels<64, 1>(p);
    case 128: return multiply_panels<128, 1>(p);
    default: break;
  }
  for (std::int64_t j = 0; j < p.columns; j += kTileColumns) {
    multiply_rows(p.rows, p.depth, {p.a, row_stride, 1}, p.b + j, p.b_stride, nullptr, p.c + j, p.c_stride, p.output);
  }
}

// row[j] *= factor for j < length, a multiple of 8.
inline void scale_row(float* row, std::int64_t length, float factor) {
  const simd::F32x8 f = simd::set1(factor);
  for (std::int64_t j = 0; j < length; j += simd::kLanes) simd::store(row + j, _mm256_mul_ps(simd::load(row + j), f));
}

// out[d] = row[d] * factor for d < dim, converted to T.
template <class T>
inline void store_scaled(const float* row, std::int64_t dim, float factor, T* out) {
  for_each_element(dim, [=, row = Row(row), out = Row(out)](auto d) { out.set(d, row[d] * factor); });
}

}  // namespace megalith::attention

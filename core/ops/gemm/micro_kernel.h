// The inner product of GEMM and attention: a register tile of up to 6 x 16 sums (12 AVX2 accumulators, two rows of b,
// one broadcast). As in BLIS: Van Zee & van de Geijn 2015, doi:10.1145/2764454. For *_cpu.cpp files.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace megalith {

inline constexpr std::int64_t kTileRows = 6;
inline constexpr std::int64_t kTileColumns = 16;

// a(i, p) = a[i * row_stride + p * step], fp32.
struct TileOperand {
  const float* data;
  std::int64_t row_stride;
  std::int64_t step;
};

enum class TileOutput { kStore, kAdd };

// c[i][j] (=|+=) start[j] + sum over p < k of a(i, p) b[p * b_stride + j] for i < Rows, j < 16. `start` may be null
// (0). Each sum is one chain of fused multiply-adds in ascending p, so that it does not depend on its tile.
template <int Rows>
inline void multiply_tile(std::int64_t k, const TileOperand& a, const float* b, std::int64_t b_stride,
                          const float* start, float* c, std::int64_t c_stride, TileOutput output) {
  __m256 sum[Rows][2];
  const __m256 start0 = start == nullptr ? _mm256_setzero_ps() : _mm256_loadu_ps(start);
  const __m256 start1 = start == nullptr ? _mm256_setzero_ps() : _mm256_loadu_ps(start + 8);
  for (int i = 0; i < Rows; ++i) {
    sum[i][0] = start0;
    sum[i][1] = start1;
  }
  // c is used last and often out of cache. A row of the tile spans at most two lines.
  for (int i = 0; i < Rows; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(c + i * c_stride), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(c + i * c_stride + 15), _MM_HINT_T0);
  }
  const float* a_column = a.data;
#pragma GCC unroll 4
  for (std::int64_t p = 0; p < k; ++p) {
    const __m256 b0 = _mm256_loadu_ps(b);
    const __m256 b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      const __m256 factor = _mm256_broadcast_ss(a_column + i * a.row_stride);
      sum[i][0] = _mm256_fmadd_ps(factor, b0, sum[i][0]);
      sum[i][1] = _mm256_fmadd_ps(factor, b1, sum[i][1]);
    }
    a_column += a.step;
    b += b_stride;
  }
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i) {
    float* row = c + i * c_stride;
    if (output == TileOutput::kAdd) {
      sum[i][0] = _mm256_add_ps(_mm256_loadu_ps(row), sum[i][0]);
      sum[i][1] = _mm256_add_ps(_mm256_loadu_ps(row + 8), sum[i][1]);
    }
    _mm256_storeu_ps(row, sum[i][0]);
    _mm256_storeu_ps(row + 8, sum[i][1]);
  }
}

// Same for 1 to 6 rows. Inlined: constant strides become address constants.
[[gnu::always_inline]] inline void multiply_rows(std::int64_t rows, std::int64_t k, const TileOperand& a,
                                                 const float* b, std::int64_t b_stride, const float* start, float* c,
                                                 std::int64_t c_stride, TileOutput output) {
  switch (rows) {
    case 6: return multiply_tile<6>(k, a, b, b_stride, start, c, c_stride, output);
    case 5: return multiply_tile<5>(k, a, b, b_stride, start, c, c_stride, output);
    case 4: return multiply_tile<4>(k, a, b, b_stride, start, c, c_stride, output);
    case 3: return multiply_tile<3>(k, a, b, b_stride, start, c, c_stride, output);
    case 2: return multiply_tile<2>(k, a, b, b_stride, start, c, c_stride, output);
    case 1: return multiply_tile<1>(k, a, b, b_stride, start, c, c_stride, output);
    default: return;
  }
}

}  // namespace megalith

// Memory-bound: each row is read from memory once, and again from L1 for the second half of the work; backward sums its
// weight gradient in kNormPartials rows that stay in L1. Deterministic: a row's sums are 32 fixed chains, and a row of
// partial sums covers a fixed eighth of the rows in ascending order.
#include <algorithm>
#include <cmath>

#include "core/ops/norm.h"
#include "core/ops/row_index.h"
#include "core/ops/simd_math.h"

namespace megalith {

namespace {

using simd::F32x8;

// Access to eight elements of a row, or to the last few: lanes beyond the row read as 0.
struct FullGroup {
  template <class T>
  F32x8 load(const T* p) const {
    return simd::load(p);
  }
  template <class T>
  void store(T* p, F32x8 x) const {
    simd::store(p, x);
  }
  F32x8 keep(F32x8 x) const { return x; }
};

struct LastGroup {
  std::int64_t count;

  template <class T>
  F32x8 load(const T* p) const {
    return simd::load_partial(p, count);
  }
  template <class T>
  void store(T* p, F32x8 x) const {
    simd::store_partial(p, x, count);
  }
  F32x8 keep(F32x8 x) const { return _mm256_and_ps(x, _mm256_castsi256_ps(simd::lane_mask(count))); }
};

template <int Count>
struct Sums {
  F32x8 at[Count];
};

// Sums over a row: step(i, group, sums) adds the terms of elements i .. i + 7. Four accumulators hide the latency.
template <int Count, class Step>
inline void sum_row(std::int64_t n, float (&totals)[Count], Step&& step) {
  Sums<Count> sums[4];
  for (Sums<Count>& s : sums) std::fill_n(s.at, Count, simd::zero());
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) step(i + 8 * u, FullGroup{}, sums[u]);
  }
  for (; i + 8 <= n; i += 8) step(i, FullGroup{}, sums[0]);
  if (i < n) step(i, LastGroup{n - i}, sums[1]);
  for (int c = 0; c < Count; ++c) {
    totals[c] = simd::horizontal_sum(
        _mm256_add_ps(_mm256_add_ps(sums[0].at[c], sums[1].at[c]), _mm256_add_ps(sums[2].at[c], sums[3].at[c])));
  }
}

template <class Step>
inline void for_each_group(std::int64_t n, Step&& step) {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) step(i, FullGroup{});
  if (i < n) step(i, LastGroup{n - i});
}

// Both norms: LayerNorm is centred (subtracts the mean, adds a bias), RMSNorm is not.
template <class T>
struct ForwardRow {
  const T *x, *residual, *weight, *bias;
  T *sum, *y;
  std::int64_t length;
  float eps;
};

struct Statistics {
  float mean = 0;
  float rstd = 0;
};

// x' = x + residual as stored; returns the sum of x' (centred) or of its squares.
template <bool Centred, class T>
float add_residual(const ForwardRow<T>& row) {
  float total[1];
  sum_row(row.length, total, [&](std::int64_t i, auto group, Sums<1>& sums) {
    F32x8 v = group.load(row.x + i);
    if (row.residual != nullptr) {
      v = _mm256_add_ps(v, group.load(row.residual + i));
      if constexpr (sizeof(T) == 2) v = simd::from_bf16_bits(simd::to_bf16_bits(v));
      group.store(row.sum + i, v);
    }
    sums.at[0] = Centred ? _mm256_add_ps(sums.at[0], v) : _mm256_fmadd_ps(v, v, sums.at[0]);
  });
  return total[0];
}

template <bool Centred, class T>
Statistics normalise_row(const ForwardRow<T>& row) {
  const float length = static_cast<float>(row.length);
  const T* x = row.residual == nullptr ? row.x : row.sum;
  Statistics statistics;
  float squares = add_residual<Centred>(row);
  if constexpr (Centred) {
    statistics.mean = squares / length;
    const F32x8 mean = simd::set1(statistics.mean);
    float total[1];
    sum_row(row.length, total, [&](std::int64_t i, auto group, Sums<1>& sums) {
      const F32x8 v = group.keep(_mm256_sub_ps(group.load(x + i), mean));
      sums.at[0] = _mm256_fmadd_ps(v, v, sums.at[0]);
    });
    squares = total[0];
  }
  statistics.rstd = 1.0f / std::sqrt(squares / length + row.eps);
  const F32x8 mean = simd::set1(statistics.mean), rstd = simd::set1(statistics.rstd);
  for_each_group(row.length, [&](std::int64_t i, auto group) {
    F32x8 v = group.load(x + i);
    if constexpr (Centred) v = _mm256_sub_ps(v, mean);
    v = _mm256_mul_ps(v, rstd);
    const F32x8 weight = group.load(row.weight + i);
    if constexpr (Centred) {
      v = _mm256_fmadd_ps(v, weight, group.load(row.bias + i));
    } else {
      v = _mm256_mul_ps(v, weight);
    }
    group.store(row.y + i, v);
  });
  return statistics;
}

// `bias` and `mean` are null for RMSNorm.
template <bool Centred, class T, class Op>
void normalise(const Op& op, const T* bias, float* mean) {
  const Rows<const T> x(op.x), residual(op.residual);
  const Rows<T> sum(op.sum), y(op.y);
  const std::int64_t rows = live_rows(op.x);
  if (rows == 0) return;
  RowIndex index(op.x, 0);
  for (std::int64_t r = 0; r < rows; ++r, index.advance()) {
    const Statistics statistics = normalise_row<Centred>(ForwardRow<T>{.x = x.at(index),
                                                                       .residual = residual.at(index),
                                                                       .weight = op.weight.template as<const T>(),
                                                                       .bias = bias,
                                                                       .sum = sum.at(index),
                                                                       .y = y.at(index),
                                                                       .length = op.x.size(-1),
                                                                       .eps = op.eps});
    if constexpr (Centred) mean[r] = statistics.mean;
    op.rstd.template as<float>()[r] = statistics.rstd;
  }
}

template <class T>
struct BackwardRow {
  const T *dy, *x, *weight, *d_residual;
  T* dx;
  float *d_weight, *d_bias;  // of this row's partial sum; d_bias only if centred
  std::int64_t length;
  Statistics statistics;
};

template <bool Centred, class T>
void differentiate_row(const BackwardRow<T>& row) {
  const F32x8 mean = simd::set1(row.statistics.mean), rstd = simd::set1(row.statistics.rstd);
  const auto normalised = [&](F32x8 x) { return _mm256_mul_ps(Centred ? _mm256_sub_ps(x, mean) : x, rstd); };
  float totals[2];  // of g h and of g
  sum_row(row.length, totals, [&](std::int64_t i, auto group, Sums<2>& sums) {
    const F32x8 g = _mm256_mul_ps(group.load(row.dy + i), group.load(row.weight + i));
    sums.at[0] = _mm256_fmadd_ps(g, normalised(group.load(row.x + i)), sums.at[0]);
    if constexpr (Centred) sums.at[1] = _mm256_add_ps(sums.at[1], g);
  });
  const float length = static_cast<float>(row.length);
  const F32x8 mean_gh = simd::set1(totals[0] / length), mean_g = simd::set1(totals[1] / length);
  for_each_group(row.length, [&](std::int64_t i, auto group) {
    const F32x8 dy = group.load(row.dy + i);
    const F32x8 h = normalised(group.load(row.x + i));
    F32x8 v = _mm256_mul_ps(dy, group.load(row.weight + i));
    if constexpr (Centred) v = _mm256_sub_ps(v, mean_g);
    v = _mm256_mul_ps(_mm256_fnmadd_ps(h, mean_gh, v), rstd);
    if (row.d_residual != nullptr) v = _mm256_add_ps(v, group.load(row.d_residual + i));
    group.store(row.dx + i, v);
    group.store(row.d_weight + i, _mm256_fmadd_ps(dy, h, group.load(row.d_weight + i)));
    if constexpr (Centred) group.store(row.d_bias + i, _mm256_add_ps(dy, group.load(row.d_bias + i)));
  });
}

// `mean` and `d_bias` are null for RMSNorm.
template <bool Centred, class T, class Op>
void differentiate(const Op& op, const float* mean, float* d_bias) {
  const Rows<const T> dy(op.dy), x(op.x), d_residual(op.d_residual);
  const Rows<T> dx(op.dx);
  const std::int64_t rows = live_rows(op.x), length = op.x.size(-1);
  const float* rstd = op.rstd.template as<const float>();
  for (std::int64_t part = 0; part < kNormPartials; ++part) {
    float* d_weight = op.d_weight_partial.template as<float>() + part * length;
    std::fill_n(d_weight, length, 0.0f);
    float* d_bias_row = Centred ? d_bias + part * length : nullptr;
    if constexpr (Centred) std::fill_n(d_bias_row, length, 0.0f);
    const std::int64_t begin = rows * part / kNormPartials, end = rows * (part + 1) / kNormPartials;
    if (begin == end) continue;
    RowIndex index(op.x, begin);
    for (std::int64_t r = begin; r < end; ++r, index.advance()) {
      differentiate_row<Centred>(BackwardRow<T>{.dy = dy.at(index),
                                                .x = x.at(index),
                                                .weight = op.weight.template as<const T>(),
                                                .d_residual = d_residual.at(index),
                                                .dx = dx.at(index),
                                                .d_weight = d_weight,
                                                .d_bias = d_bias_row,
                                                .length = length,
                                                .statistics = {.mean = Centred ? mean[r] : 0.0f, .rstd = rstd[r]}});
    }
  }
}

}  // namespace

void run(CpuStream& stream, const RmsNormForward& op) {
  stream.enqueue([op] {
    if (op.x.dtype == DType::kFp32) return normalise<false, float>(op, nullptr, nullptr);
    normalise<false, bf16>(op, nullptr, nullptr);
  });
}

void run(CpuStream& stream, const RmsNormBackward& op) {
  stream.enqueue([op] {
    if (op.x.dtype == DType::kFp32) return differentiate<false, float>(op, nullptr, nullptr);
    differentiate<false, bf16>(op, nullptr, nullptr);
  });
}

void run(CpuStream& stream, const LayerNormForward& op) {
  stream.enqueue([op] {
    float* mean = op.mean.as<float>();
    if (op.x.dtype == DType::kFp32) return normalise<true, float>(op, op.bias.as<const float>(), mean);
    normalise<true, bf16>(op, op.bias.as<const bf16>(), mean);
  });
}

void run(CpuStream& stream, const LayerNormBackward& op) {
  stream.enqueue([op] {
    const float* mean = op.mean.as<const float>();
    float* d_bias = op.d_bias_partial.as<float>();
    if (op.x.dtype == DType::kFp32) return differentiate<true, float>(op, mean, d_bias);
    differentiate<true, bf16>(op, mean, d_bias);
  });
}

}  // namespace megalith

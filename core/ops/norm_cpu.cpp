// Memory-bound: each row is read from memory once, and again from L1 for the second half of the work; backward sums its
// weight gradient in a few rows that stay in L1. Deterministic: a row's sums are 32 fixed chains, and a row of
// partial sums covers a fixed eighth of the rows in ascending order.
#include <algorithm>
#include <cmath>

#include "core/ops/norm.h"
#include "core/ops/row_index.h"
#include "core/ops/simd_wide.h"

namespace megalith {

namespace {

using simd::Wide;

template <int Count>
struct Sums {
  Wide at[Count];
};

// Sums over a row: step(i, group, sums) adds the terms of a group. Two pairs of accumulators hide the latency.
template <int Count, class Step>
inline void sum_row(std::int64_t n, float (&totals)[Count], Step&& step) {
  Sums<Count> sums[2];
  for (Sums<Count>& s : sums) std::fill_n(s.at, Count, simd::splat(0));
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    step(i, simd::FullGroup{}, sums[0]);
    step(i + 16, simd::FullGroup{}, sums[1]);
  }
  if (i + 16 <= n) {
    step(i, simd::FullGroup{}, sums[0]);
    i += 16;
  }
  if (i < n) step(i, simd::LastGroup(n - i), sums[1]);
  for (int c = 0; c < Count; ++c) {
    const Wide sum = simd::add(sums[0].at[c], sums[1].at[c]);
    totals[c] = simd::horizontal_sum(_mm256_add_ps(sum.a, sum.b));
  }
}

// As it will be read back.
template <class T>
Wide rounded(Wide x) {
  if constexpr (sizeof(T) == sizeof(float)) return x;
  return simd::from_bf16_words(simd::to_bf16_words(x));
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
    Wide v = group.load(row.x + i);
    if (row.residual != nullptr) {
      v = rounded<T>(simd::add(v, group.load(row.residual + i)));
      group.store(row.sum + i, v);
    }
    sums.at[0] = Centred ? simd::add(sums.at[0], v) : simd::multiply_add(v, v, sums.at[0]);
  });
  return total[0];
}

template <bool Centred, class T>
Statistics normalise_row(const ForwardRow<T>& row) {
  const float length = static_cast<float>(row.length);
  const T* x = row.residual == nullptr ? row.x : row.sum;
  Statistics statistics;
  float squares = add_residual<Centred>(row);  // centred: the plain sum, so far
  if constexpr (Centred) {
    statistics.mean = squares / length;
    const Wide mean = simd::splat(statistics.mean);
    float total[1];
    sum_row(row.length, total, [&](std::int64_t i, auto group, Sums<1>& sums) {
      const Wide v = group.keep(simd::subtract(group.load(x + i), mean));
      sums.at[0] = simd::multiply_add(v, v, sums.at[0]);
    });
    squares = total[0];
  }
  statistics.rstd = 1.0f / std::sqrt(squares / length + row.eps);
  const Wide mean = simd::splat(statistics.mean), rstd = simd::splat(statistics.rstd);
  simd::for_each_group(row.length, [&](std::int64_t i, auto group) {
    Wide v = group.load(x + i);
    if constexpr (Centred) v = simd::subtract(v, mean);
    v = simd::multiply(v, rstd);
    const Wide weight = group.load(row.weight + i);
    if constexpr (Centred) {
      v = simd::multiply_add(v, weight, group.load(row.bias + i));
    } else {
      v = simd::multiply(v, weight);
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
  T *dx, *y;                 // y: null, or not centred
  float *d_weight, *d_bias;  // of this row's partial sum; d_bias only if centred
  std::int64_t length;
  Statistics statistics;
};

template <bool Centred, class T>
void differentiate_row(const BackwardRow<T>& row) {
  const Wide mean = simd::splat(row.statistics.mean), rstd = simd::splat(row.statistics.rstd);
  const auto normalised = [&](Wide x) { return simd::multiply(Centred ? simd::subtract(x, mean) : x, rstd); };
  float totals[2];  // of g h and of g
  sum_row(row.length, totals, [&](std::int64_t i, auto group, Sums<2>& sums) {
    const Wide g = simd::multiply(group.load(row.dy + i), group.load(row.weight + i));
    sums.at[0] = simd::multiply_add(g, normalised(group.load(row.x + i)), sums.at[0]);
    if constexpr (Centred) sums.at[1] = simd::add(sums.at[1], g);
  });
  const float length = static_cast<float>(row.length);
  const Wide mean_gh = simd::splat(totals[0] / length), mean_g = simd::splat(totals[1] / length);
  simd::for_each_group(row.length, [&](std::int64_t i, auto group) {
    const Wide dy = group.load(row.dy + i);
    const Wide h = normalised(group.load(row.x + i));
    const Wide weight = group.load(row.weight + i);
    if (row.y != nullptr) group.store(row.y + i, simd::multiply(h, weight));
    Wide v = simd::multiply(dy, weight);
    if constexpr (Centred) v = simd::subtract(v, mean_g);
    v = simd::multiply(simd::subtract_product(v, h, mean_gh), rstd);
    if (row.d_residual != nullptr) v = simd::add(v, group.load(row.d_residual + i));
    group.store(row.dx + i, v);
    group.store(row.d_weight + i, simd::multiply_add(dy, h, group.load(row.d_weight + i)));
    if constexpr (Centred) group.store(row.d_bias + i, simd::add(dy, group.load(row.d_bias + i)));
  });
}

// `mean` and `d_bias` are null for RMSNorm.
template <bool Centred, class T, class Op>
void differentiate(const Op& op, const float* mean, float* d_bias, const Tensor& again = {}) {
  const Rows<const T> dy(op.dy), x(op.x), d_residual(op.d_residual);
  const Rows<T> dx(op.dx), y(again);
  const std::int64_t rows = live_rows(op.x), length = op.x.size(-1);
  const float* rstd = op.rstd.template as<const float>();
  const std::int64_t parts = op.d_weight_partial.size(0);
  for (std::int64_t part = 0; part < parts; ++part) {
    float* d_weight = op.d_weight_partial.template as<float>() + part * length;
    std::fill_n(d_weight, length, 0.0f);
    float* d_bias_row = Centred ? d_bias + part * length : nullptr;
    if constexpr (Centred) std::fill_n(d_bias_row, length, 0.0f);
    const std::int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
    if (begin == end) continue;
    RowIndex index(op.x, begin);
    for (std::int64_t r = begin; r < end; ++r, index.advance()) {
      differentiate_row<Centred>(BackwardRow<T>{.dy = dy.at(index),
                                                .x = x.at(index),
                                                .weight = op.weight.template as<const T>(),
                                                .d_residual = d_residual.at(index),
                                                .dx = dx.at(index),
                                                .y = y.at(index),
                                                .d_weight = d_weight,
                                                .d_bias = d_bias_row,
                                                .length = length,
                                                .statistics = {.mean = Centred ? mean[r] : 0.0f, .rstd = rstd[r]}});
    }
    if constexpr (sizeof(T) == 2) {
      simd::unshuffle(d_weight, length);
      if constexpr (Centred) simd::unshuffle(d_bias_row, length);
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
    if (op.x.dtype == DType::kFp32) return differentiate<false, float>(op, nullptr, nullptr, op.y);
    differentiate<false, bf16>(op, nullptr, nullptr, op.y);
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

// Parts of softmax over long rows for both cross-entropies. For *_cpu.cpp files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/ops/data_faults.h"
#include "core/ops/loops.h"

namespace megalith {

inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Columns per block of maximum and exponentials: 4 KiB of fp32, so that the second pass hits the L1 cache.
inline constexpr std::int64_t kBlock = 1024;

struct SoftmaxSum {
  float max = kLowest;
  float sum = 0;          // sum of exp(x - max)
  float label_logit = 0;  // x - max at the label, if the row has one
};

template <class T>
F32x8 load_logits(const T* x, std::int64_t count) {
  if (count >= simd::kLanes) return simd::load(x);
  return simd::select_first(count, simd::load_partial(x, count), simd::set1(kLowest));
}

// Ignores NaN, which the sum keeps.
template <class T>
float block_max(const T* x, std::int64_t count) {
  F32x8 max[4] = {simd::set1(kLowest), simd::set1(kLowest), simd::set1(kLowest), simd::set1(kLowest)};
  std::int64_t i = 0;
  for (; i + 4 * simd::kLanes <= count; i += 4 * simd::kLanes) {
    for (int k = 0; k < 4; ++k) max[k] = _mm256_max_ps(simd::load(x + i + k * simd::kLanes), max[k]);
  }
  for (; i < count; i += simd::kLanes) max[0] = _mm256_max_ps(load_logits(x + i, count - i), max[0]);
  return simd::horizontal_max(_mm256_max_ps(_mm256_max_ps(max[0], max[1]), _mm256_max_ps(max[2], max[3])));
}

template <class T>
float block_sum(const T* x, std::int64_t count, float max) {
  F32x8 sum[2] = {simd::zero(), simd::zero()};
  std::int64_t i = 0;
  for (; i + 2 * simd::kLanes <= count; i += 2 * simd::kLanes) {
    for (int k = 0; k < 2; ++k) {
      sum[k] += simd::exp_nonpositive(simd::load(x + i + k * simd::kLanes) - max);
    }
  }
  for (; i < count; i += simd::kLanes) sum[0] += simd::exp_nonpositive(load_logits(x + i, count - i) - max);
  return simd::horizontal_sum(sum[0] + sum[1]);
}

inline float scalar_exp(float x) { return _mm256_cvtss_f32(simd::exp_nonpositive(simd::set1(x))); }

// Computes both in one pass: a block that raises the maximum rescales the sum.
template <class T>
SoftmaxSum softmax_of(const T* x, std::int64_t columns) {
  SoftmaxSum row;
  for (std::int64_t i = 0; i < columns; i += kBlock) {
    const std::int64_t count = std::min(kBlock, columns - i);
    const float max = std::max(row.max, block_max(x + i, count));
    const float shift = max == kLowest ? 0 : max;  // all -inf so far: -inf - -inf would be NaN
    const float sum = block_sum(x + i, count, shift);
    row.sum = i == 0 ? sum : row.sum * scalar_exp(row.max - shift) + sum;
    row.max = max;
  }
  return row;
}

// Replaces a row's first `columns` logits by scale (softmax - (v == label)), the others by 0.
template <class T>
void write_gradient(T* x, std::int64_t width, std::int64_t columns, std::int64_t label, const SoftmaxSum& row,
                    float scale) {
  const float factor = scale / row.sum;
  for_each_element(
      columns, [=, row = Row(x), max = row.max](auto i) { row.set(i, simd::exp_nonpositive(row[i] - max) * factor); });
  // Recomputes the label's element: the subtraction precedes the rounding to T.
  if (label >= 0 && label < columns) {
    x[label] = from_float<T>((scalar_exp(row.label_logit) / row.sum - 1.0f) * scale);
  }
  std::fill_n(x + columns, width - columns, from_float<T>(0));
}

// Called ahead of any write.
inline void check_labels(const Tensor& labels, std::int64_t vocab_size) {
  const auto* label = labels.as<const std::int32_t>();
  for (std::int64_t row = 0; row < labels.numel(); ++row) {
    if (label[row] < vocab_size) continue;
    const std::int64_t values[] = {row, label[row], vocab_size};
    raise_bad_label(values);
  }
}

}  // namespace megalith

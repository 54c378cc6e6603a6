#include <algorithm>
#include <limits>

#include "core/ops/cross_entropy.h"
#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/simd_math.h"

namespace megalith {

namespace {

using simd::F32x8;

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Columns whose maximum is taken before their exponentials: 4 KiB of fp32, so that the second look is in the L1 cache.
constexpr std::int64_t kBlock = 1024;

struct Softmax {
  float max = kLowest;
  float sum = 0;  // of exp(x - max)
};

template <class T>
F32x8 load_logits(const T* x, std::int64_t count) {
  return count >= simd::kLanes ? simd::load(x)
                               : _mm256_blendv_ps(simd::set1(kLowest), simd::load_partial(x, count),
                                                  _mm256_castsi256_ps(simd::lane_mask(count)));
}

// Without NaN, which the sum keeps.
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
  const F32x8 shift = simd::set1(max);
  F32x8 sum[2] = {simd::zero(), simd::zero()};
  std::int64_t i = 0;
  for (; i + 2 * simd::kLanes <= count; i += 2 * simd::kLanes) {
    for (int k = 0; k < 2; ++k) {
      sum[k] = _mm256_add_ps(sum[k], simd::exp_nonpositive(_mm256_sub_ps(simd::load(x + i + k * simd::kLanes), shift)));
    }
  }
  for (; i < count; i += simd::kLanes) {
    sum[0] = _mm256_add_ps(sum[0], simd::exp_nonpositive(_mm256_sub_ps(load_logits(x + i, count - i), shift)));
  }
  return simd::horizontal_sum(_mm256_add_ps(sum[0], sum[1]));
}

float scalar_exp(float x) { return _mm256_cvtss_f32(simd::exp_nonpositive(simd::set1(x))); }

// One pass over the row: each block rescales the sum so far when it raises the maximum.
template <class T>
Softmax softmax_of(const T* x, std::int64_t columns) {
  Softmax row;
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

template <class T>
void write_gradient(T* x, std::int64_t columns, const Softmax& row, float scale) {
  const F32x8 shift = simd::set1(row.max);
  const F32x8 factor = simd::set1(scale / row.sum);
  simd::for_each_vector(columns, [=](std::int64_t i, auto load, auto store) {
    store(x + i, _mm256_mul_ps(simd::exp_nonpositive(_mm256_sub_ps(load(x + i), shift)), factor));
  });
}

template <class T>
void cross_entropy(const CrossEntropy& op) {
  const std::int64_t columns = op.vocab_size;
  const float scale = op.write_gradient ? op.parameters->loss_scale : 0;
  const auto* labels = op.labels.as<const std::int32_t>();
  for (std::int64_t row = 0; row < op.labels.numel(); ++row) {
    if (labels[row] < columns) continue;
    const std::int64_t values[] = {row, labels[row], columns};
    raise_bad_label(values);
  }
  for (std::int64_t row = 0; row < op.labels.numel(); ++row) {
    T* x = op.logits.as<T>() + row * op.logits.stride(0);
    const std::int32_t label = labels[row];
    float& loss = op.loss.as<float>()[row];
    if (label < 0) {
      loss = 0;
      if (op.write_gradient) std::fill_n(x, op.logits.size(1), from_float<T>(0));
      continue;
    }
    const Softmax softmax = softmax_of(x, columns);
    const float label_logit = to_float(x[label]) - softmax.max;
    loss = simd::log(softmax.sum) - label_logit;
    if (!op.write_gradient) continue;
    write_gradient(x, columns, softmax, scale);
    // The label's own element anew: the subtraction belongs before the rounding to T.
    x[label] = from_float<T>((scalar_exp(label_logit) / softmax.sum - 1.0f) * scale);
    std::fill_n(x + columns, op.logits.size(1) - columns, from_float<T>(0));
  }
}

}  // namespace

void run(CpuStream& stream, const CrossEntropy& op) {
  stream.enqueue([op] { visit_float(op.logits.dtype, [&op](auto type) { cross_entropy<decltype(type)>(op); }); });
}

}  // namespace megalith

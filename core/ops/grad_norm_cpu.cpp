#include <algorithm>
#include <cmath>

#include "core/ops/dispatch.h"
#include "core/ops/grad_norm.h"
#include "core/ops/simd_math.h"

namespace megalith {

namespace {

// In fp64, so that no gradient of fp32 overflows. Element i goes to accumulator i % 32; the 32 are summed pairwise.
template <class T>
double sum_of_squares(const T* x, std::int64_t count) {
  __m256d sums[8] = {};
  const auto add = [&sums](int k, simd::F32x8 value) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(value));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(value, 1));
    sums[2 * k] = _mm256_fmadd_pd(low, low, sums[2 * k]);
    sums[2 * k + 1] = _mm256_fmadd_pd(high, high, sums[2 * k + 1]);
  };
  std::int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    for (int k = 0; k < 4; ++k) add(k, simd::load(x + i + 8 * k));
  }
  for (int k = 0; i < count; i += 8, ++k) add(k, simd::load_partial(x + i, std::min(simd::kLanes, count - i)));
  for (int step = 4; step > 0; step /= 2) {
    for (int k = 0; k < step; ++k) sums[k] = _mm256_add_pd(sums[k], sums[k + step]);
  }
  alignas(32) double lanes[4];
  _mm256_store_pd(lanes, sums[0]);
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

void finalize(const GradNormFinalize& op) {
  StepParameters& step = *op.parameters;
  double sum = 0;
  for (std::int64_t i = 0; i < op.sums.numel(); ++i) sum += op.sums.as<const double>()[i];
  const double norm = std::sqrt(sum);
  step.loss = *op.loss.as<const float>();
  step.grad_norm = static_cast<float>(norm);
  step.skip = std::isfinite(step.loss) && std::isfinite(step.grad_norm) ? 0 : 1;
  step.clip_factor = op.clip_grad > 0 ? static_cast<float>(std::min(1.0, op.clip_grad / (norm + 1e-6))) : 1.0f;
  if (step.skip != 0) {
    step.clip_factor = 1;  // unused; NaN would only confuse who prints it
  } else {
    ++step.adam_count;
  }
}

}  // namespace

void run(CpuStream& stream, const SumOfSquares& op) {
  stream.enqueue([op] {
    double* out = op.out.as<double>();
    for (const Tensor& x : op.tensors) {
      visit_float(x.dtype, [&](auto type) { *out++ = sum_of_squares(x.as<const decltype(type)>(), x.numel()); });
    }
  });
}

void run(CpuStream& stream, const GradNormFinalize& op) {
  stream.enqueue([op] { finalize(op); });
}

void run(CpuStream& stream, const WriteStepParameters& op) {
  stream.enqueue([op] {
    op.parameters->iteration = op.iteration;
    op.parameters->learning_rate = op.learning_rate;
  });
}

void run(CpuStream& stream, const WriteMicrobatchParameters& op) {
  stream.enqueue([op] { *op.out = op.value; });
}

}  // namespace megalith

#include <cmath>

#include "core/ops/adamw.h"
#include "core/ops/dispatch.h"
#include "core/ops/simd_math.h"

namespace megalith {

namespace {

using simd::F32x8;
using simd::set1;

// By squaring: the C library's pow may differ between machines.
double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if ((exponent & 1) != 0) result *= base;
  }
  return result;
}

// Dtypes of parameter, gradient, first and second moment.
template <class T, class G, class M, class V>
void adamw(const AdamW& op, const AdamWRange& range, const StepParameters& step) {
  const double learning_rate = static_cast<double>(step.learning_rate);
  const double correction1 = 1 - power(op.beta1, step.adam_count);
  const double correction2 = 1 - power(op.beta2, step.adam_count);
  const auto broadcast = [](double value) { return set1(static_cast<float>(value)); };
  const F32x8 clip = set1(step.clip_factor);
  const F32x8 decay = broadcast(1 - learning_rate * range.weight_decay);
  const F32x8 one_minus_beta1 = broadcast(1 - op.beta1);
  const F32x8 beta2 = broadcast(op.beta2);
  const F32x8 one_minus_beta2 = broadcast(1 - op.beta2);
  const F32x8 step_size = broadcast(learning_rate / correction1);
  const F32x8 root_correction = broadcast(1 / std::sqrt(correction2));
  const F32x8 eps = broadcast(op.eps);

  T* param = range.param.as<T>();
  auto* main_param = range.main_param.as<float>();
  const G* grad = range.grad.as<const G>();
  M* exp_avg = range.exp_avg.as<M>();
  V* exp_avg_sq = range.exp_avg_sq.as<V>();
  const bool separate = range.param.data != range.main_param.data;
  simd::for_each_vector(range.param.numel(), [=](std::int64_t i, auto load, auto store) {
    const F32x8 g = _mm256_mul_ps(load(grad + i), clip);
    F32x8 m = load(exp_avg + i);
    m = _mm256_fmadd_ps(_mm256_sub_ps(g, m), one_minus_beta1, m);
    const F32x8 v = _mm256_fmadd_ps(_mm256_mul_ps(g, g), one_minus_beta2, _mm256_mul_ps(load(exp_avg_sq + i), beta2));
    const F32x8 denominator = _mm256_fmadd_ps(_mm256_sqrt_ps(v), root_correction, eps);
    const F32x8 update = _mm256_div_ps(m, denominator);
    const F32x8 w = _mm256_fnmadd_ps(step_size, update, _mm256_mul_ps(load(main_param + i), decay));
    store(exp_avg + i, m);
    store(exp_avg_sq + i, v);
    store(main_param + i, w);
    if (separate) store(param + i, w);
  });
}

void adamw(const AdamW& op) {
  const StepParameters step = *op.parameters;
  if (step.skip != 0) return;
  for (const AdamWRange& range : op.ranges) {
    visit_float(range.param.dtype, [&](auto param) {
      visit_float(range.grad.dtype, [&](auto grad) {
        visit_float(range.exp_avg.dtype, [&](auto first) {
          visit_float(range.exp_avg_sq.dtype, [&](auto second) {
            adamw<decltype(param), decltype(grad), decltype(first), decltype(second)>(op, range, step);
          });
        });
      });
    });
  }
}

}  // namespace

void run(CpuStream& stream, const AdamW& op) {
  stream.enqueue([op] { adamw(op); });
}

}  // namespace megalith

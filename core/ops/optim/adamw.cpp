#include "core/ops/optim/adamw.h"

#include <cmath>
#include <limits>

#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/loops.h"

namespace megalith {

void fields(const AdamW& op, Fields& f) {
  constexpr double kMax = std::numeric_limits<double>::max();
  const double below_one = std::nextafter(1.0, 0.0);
  f.range(op.beta1, 0, below_one, "op.beta1");
  f.range(op.beta2, 0, below_one, "op.beta2");
  f.range(op.eps, 0, kMax, "op.eps");
  f.in(op.parameters, "op.parameters");
  for (const AdamWRange& range : op.ranges) {
    const AdamWRange& first = op.ranges.front();
    const bool is_first = &range == &first;
    const auto same_dtype = [is_first](const Tensor& tensor) {
      return is_first ? kFloatTypes : DTypeSet{tensor.dtype};
    };
    f.next_element();
    f.out(range.param, "range.param").rank(1).dtype(same_dtype(first.param));
    f.inout(range.main_param, "range.main_param").shape(range.param.shape).dtype(DType::kFp32).may_be(range.param);
    f.in(range.grad, "range.grad").shape(range.param.shape).dtype(same_dtype(first.grad));
    f.inout(range.exp_avg, "range.exp_avg").shape(range.param.shape).dtype(same_dtype(first.exp_avg));
    f.inout(range.exp_avg_sq, "range.exp_avg_sq").shape(range.param.shape).dtype(same_dtype(first.exp_avg_sq));
    f.range(range.weight_decay, 0, kMax, "range.weight_decay");
  }
}

namespace {

// Computes the power by squaring: the C library's pow may differ between machines.
double power(double base, std::int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if ((exponent & 1) != 0) result *= base;
  }
  return result;
}

// Template arguments: dtypes of parameter, gradient, first and second moment.
template <class T, class G, class M, class V>
void adamw(const AdamW& op, const AdamWRange& range, const StepParameters& step) {
  const auto learning_rate = static_cast<double>(range.decoupled ? step.decoupled_learning_rate : step.learning_rate);
  const double correction1 = 1 - power(op.beta1, step.adam_count);
  const double correction2 = 1 - power(op.beta2, step.adam_count);
  const float clip = step.clip_factor;
  const auto decay = static_cast<float>(1 - learning_rate * (range.weight_decay * step.weight_decay_scale));
  const auto one_minus_beta1 = static_cast<float>(1 - op.beta1);
  const auto beta2 = static_cast<float>(op.beta2), one_minus_beta2 = static_cast<float>(1 - op.beta2);
  const auto step_size = static_cast<float>(learning_rate / correction1);
  const auto root_correction = static_cast<float>(1 / std::sqrt(correction2));
  const auto eps = static_cast<float>(op.eps);

  const Row grad = range.grad.as<const G>();
  const Row param = range.param.as<T>();
  const Row main_param = range.main_param.as<float>();
  const Row exp_avg = range.exp_avg.as<M>();
  const Row exp_avg_sq = range.exp_avg_sq.as<V>();
  const bool separate = range.param.data != range.main_param.data;
  for_each_element(range.param.numel(), [=](auto i) {
    const F32x8 g = grad[i] * clip;
    const F32x8 m = fma(g - exp_avg[i], one_minus_beta1, exp_avg[i]);
    const F32x8 v = fma(g * g, one_minus_beta2, exp_avg_sq[i] * beta2);
    const F32x8 update = m / fma(sqrt(v), root_correction, eps);
    const F32x8 w = fma(-step_size, update, main_param[i] * decay);
    exp_avg.set(i, m);
    exp_avg_sq.set(i, v);
    main_param.set(i, w);
    if (separate) param.set(i, w);
  });
}

}  // namespace

void compute(const AdamW& op) {
  const StepParameters step = *op.parameters;
  if (step.skip != 0) return;
  for (const AdamWRange& range : op.ranges) {
    visit_float(range.param.dtype, range.grad.dtype, [&]<class T, class G>(T, G) {
      visit_float(range.exp_avg.dtype, range.exp_avg_sq.dtype,
                  [&]<class M, class V>(M, V) { adamw<T, G, M, V>(op, range, step); });
    });
  }
}

}  // namespace megalith

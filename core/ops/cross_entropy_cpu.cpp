#include <algorithm>

#include "core/ops/cross_entropy.h"
#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/softmax_cpu.h"

namespace megalith {

namespace {

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
    const SoftmaxSum softmax = softmax_of(x, columns);
    const float label_logit = to_float(x[label]) - softmax.max;
    loss = simd::log(softmax.sum) - label_logit;
    if (!op.write_gradient) continue;
    write_softmax_gradient(x, columns, softmax, scale);
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

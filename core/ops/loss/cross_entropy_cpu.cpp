#include "core/ops/dispatch.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/softmax_cpu.h"

namespace megalith {

void compute(const CrossEntropy& op) {
  check_labels(op.labels, op.vocab_size);
  visit_float(op.logits.dtype, [&]<class T>(T) {
    for (std::int64_t row = 0; row < op.labels.numel(); ++row) {
      T* x = op.logits.as<T>() + row * op.logits.stride(0);
      const std::int32_t label = op.labels.as<const std::int32_t>()[row];
      const std::int64_t columns = label < 0 ? 0 : op.vocab_size;
      SoftmaxSum softmax = softmax_of(x, columns);
      if (label >= 0) softmax.label_logit = to_float(x[label]) - softmax.max;
      op.loss.as<float>()[row] = label < 0 ? 0 : simd::log(softmax.sum) - softmax.label_logit;
      if (op.write_gradient) {
        write_gradient(x, op.logits.size(1), columns, label, softmax, op.parameters->loss_scale);
      }
    }
  });
}

}  // namespace megalith

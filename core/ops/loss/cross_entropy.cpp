#include "core/ops/loss/cross_entropy.h"

#include "core/ops/data_faults.h"
#include "core/ops/dispatch.h"
#include "core/ops/fields.h"
#include "core/ops/softmax_cpu.h"

namespace megalith {

void fields(const CrossEntropy& op, Fields& f) {
  f.in(op.logits, "op.logits").floating().rank(2).strided_rows().write_if(op.write_gradient);
  f.in(op.labels, "op.labels").dtype(DType::kInt32).shape({op.logits.size(0)});
  f.out(op.loss, "op.loss").dtype(DType::kFp32).shape({op.logits.size(0)});
  if (op.write_gradient) f.in(op.parameters, "op.parameters");
  f.workspace(op.workspace);
  f.range(static_cast<double>(op.vocab_size), 1, static_cast<double>(op.logits.size(1)), "op.vocab_size");
}

std::size_t workspace_bytes(const CrossEntropy&, DeviceType device) {
  return device == DeviceType::kCuda ? kVerdictBytes : 0;
}

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

#include "core/ops/loss/cross_entropy.h"

#include "core/ops/data_faults.h"
#include "core/ops/fields.h"

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

}  // namespace megalith

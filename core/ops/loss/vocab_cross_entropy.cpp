#include "core/ops/loss/vocab_cross_entropy.h"

#include "core/ops/data_faults.h"
#include "core/ops/fields.h"

namespace megalith {

namespace {

Field& logits(const Tensor& x, Fields& f) { return f.in(x, "op.logits").floating().rank(2).strided_rows(); }

template <class Op>
void labels_and_columns(const Op& op, Fields& f) {
  f.in(op.labels, "op.labels").dtype(DType::kInt32).shape({op.logits.size(0)});
  f.range(static_cast<double>(op.columns.vocab_size), 1, 0x1p31, "op.columns.vocab_size");
  f.range(static_cast<double>(op.columns.first_column), 0, 0x1p31, "op.columns.first_column");
}

Field& fp32(Field& field, const Shape& shape) { return field.dtype(DType::kFp32).shape(shape); }

}  // namespace

void fields(const VocabMax& op, Fields& f) {
  logits(op.logits, f);
  labels_and_columns(op, f);
  fp32(f.out(op.max, "op.max"), op.labels.shape);
  f.workspace(op.workspace);
}

std::size_t workspace_bytes(const VocabMax&, DeviceType device) {
  return device == DeviceType::kCuda ? kVerdictBytes : 0;
}

void fields(const VocabSums& op, Fields& f) {
  logits(op.logits, f);
  labels_and_columns(op, f);
  fp32(f.in(op.max, "op.max"), op.labels.shape);
  fp32(f.out(op.sums, "op.sums"), {2, op.labels.size(0)});
}

void fields(const VocabLoss& op, Fields& f) {
  logits(op.logits, f).read_if(op.write_gradient).write_if(op.write_gradient);
  labels_and_columns(op, f);
  fp32(f.in(op.max, "op.max"), op.labels.shape).read_if(op.write_gradient);
  fp32(f.in(op.sums, "op.sums"), {2, op.labels.size(0)});
  fp32(f.out(op.loss, "op.loss"), op.labels.shape);
  if (op.write_gradient) f.in(op.parameters, "op.parameters");
}

}  // namespace megalith

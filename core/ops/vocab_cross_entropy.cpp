#include "core/ops/vocab_cross_entropy.h"

#include "core/ops/op_checks.h"

namespace megalith {

namespace {

void check_fp32(const Tensor& x, const Shape& shape, std::string_view name, Place place = Place::current()) {
  check_shape(x, shape, name, place);
  check_dtype(x, {DType::kFp32}, name, place);
  check_contiguous(x, name, place);
}

template <class Op>
void check_inputs(const Op& op, Place place = Place::current()) {
  check_rank(op.logits, 2, "op.logits", place);
  check_dtype(op.logits, kFloatTypes, "op.logits", place);
  check_rows(op.logits, "op.logits", place);
  check_shape(op.labels, {op.logits.size(0)}, "op.labels", place);
  check_dtype(op.labels, {DType::kInt32}, "op.labels", place);
  check_contiguous(op.labels, "op.labels", place);
  check_fp32(op.max, {op.logits.size(0)}, "op.max", place);
  check_range(static_cast<double>(op.columns.vocab_size), 1, 0x1p31, "op.columns.vocab_size", place);
  check_range(static_cast<double>(op.columns.first_column), 0, 0x1p31, "op.columns.first_column", place);
}

}  // namespace

void check(const VocabMax& op) {
  check_inputs(op);
  check_no_overlap(op.logits, "op.logits", op.max, "op.max");
}

void access(const VocabMax& op, Access& a) {
  a.reads(op.logits);
  a.reads(op.labels);
  a.writes(op.max);
}

void check(const VocabSums& op) {
  check_inputs(op);
  check_fp32(op.sums, {2, op.logits.size(0)}, "op.sums");
  check_no_overlap(op.logits, "op.logits", op.sums, "op.sums");
}

void access(const VocabSums& op, Access& a) {
  a.reads(op.logits);
  a.reads(op.labels);
  a.reads(op.max);
  a.writes(op.sums);
}

void check(const VocabLoss& op) {
  check_inputs(op);
  check_fp32(op.sums, {2, op.logits.size(0)}, "op.sums");
  check_fp32(op.loss, {op.logits.size(0)}, "op.loss");
  if (!op.write_gradient) return;  // logits and maxima are not read
  check_no_overlap(op.logits, "op.logits", op.loss, "op.loss");
  check_pointer(op.parameters, "op.parameters");
}

void access(const VocabLoss& op, Access& a) {
  a.reads(op.labels);
  a.reads(op.sums);
  a.writes(op.loss);
  if (!op.write_gradient) return;
  a.reads(op.logits);
  a.reads(op.max);
  a.add(op.parameters, sizeof(MicrobatchParameters), false);
  a.writes(op.logits);
}

}  // namespace megalith

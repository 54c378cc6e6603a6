#include "core/ops/cross_entropy.h"

#include "core/ops/op_checks.h"

namespace megalith {

void check(const CrossEntropy& op) {
  check_rank(op.logits, 2, "op.logits");
  check_dtype(op.logits, kFloatTypes, "op.logits");
  check_rows(op.logits, "op.logits");
  check_shape(op.labels, {op.logits.size(0)}, "op.labels");
  check_dtype(op.labels, {DType::kInt32}, "op.labels");
  check_contiguous(op.labels, "op.labels");
  check_shape(op.loss, {op.logits.size(0)}, "op.loss");
  check_dtype(op.loss, {DType::kFp32}, "op.loss");
  check_contiguous(op.loss, "op.loss");
  check_no_overlap(op.logits, "op.logits", op.loss, "op.loss");
  check_range(static_cast<double>(op.vocab_size), 1, static_cast<double>(op.logits.size(1)), "op.vocab_size");
  if (op.write_gradient) check_pointer(op.parameters, "op.parameters");
}

void access(const CrossEntropy& op, Access& a) {
  a.reads(op.logits);
  a.reads(op.labels);
  a.writes(op.loss);
  if (op.write_gradient) {
    a.add(op.parameters, sizeof(MicrobatchParameters), false);
    a.writes(op.logits);
  }
}

}  // namespace megalith

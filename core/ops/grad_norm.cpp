#include "core/ops/grad_norm.h"

#include <limits>

#include "core/ops/op_checks.h"

namespace megalith {

void check(const SumOfSquares& op) {
  check_shape(op.out, {static_cast<std::int64_t>(op.tensors.size())}, "op.out");
  check_dtype(op.out, {DType::kFp64}, "op.out");
  check_contiguous(op.out, "op.out");
  for (const Tensor& tensor : op.tensors) {
    check_dtype(tensor, kFloatTypes, "tensor");
    check_dtype(tensor, {op.tensors.front().dtype}, "tensor");
    check_contiguous(tensor, "tensor");
    check_no_overlap(tensor, "tensor", op.out, "op.out");
  }
}

void access(const SumOfSquares& op, Access& a) {
  for (const Tensor& tensor : op.tensors) a.reads(tensor);
  a.writes(op.out);
}

void check(const GradNormFinalize& op) {
  check_rank(op.sums, 1, "op.sums");
  check_dtype(op.sums, {DType::kFp64}, "op.sums");
  check_contiguous(op.sums, "op.sums");
  check_shape(op.loss, {1}, "op.loss");
  check_dtype(op.loss, {DType::kFp32}, "op.loss");
  check_range(op.clip_grad, 0, std::numeric_limits<double>::max(), "op.clip_grad");
  check_pointer(op.parameters, "op.parameters");
}

void access(const GradNormFinalize& op, Access& a) {
  a.reads(op.sums);
  a.reads(op.loss);
  a.add(op.parameters, sizeof(StepParameters), false);
  a.add(op.parameters, sizeof(StepParameters), true);
}

void check(const WriteStepParameters& op) { check_pointer(op.parameters, "op.parameters"); }

void access(const WriteStepParameters& op, Access& a) { a.add(op.parameters, sizeof(StepParameters), true); }

void check(const WriteMicrobatchParameters& op) { check_pointer(op.out, "op.out"); }

void access(const WriteMicrobatchParameters& op, Access& a) { a.add(op.out, sizeof(MicrobatchParameters), true); }

}  // namespace megalith

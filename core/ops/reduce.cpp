#include "core/ops/reduce.h"

#include "core/tensor/check.h"

namespace megalith {

void check(const ReduceRows& op) {
  check_rank(op.x, 2, "op.x");
  check_dtype(op.x, {DType::kFp32, DType::kBf16}, "op.x");
  check_rows(op.x, "op.x");
  check_shape(op.out, {op.x.size(1)}, "op.out");
  check_dtype(op.out, {DType::kFp32, DType::kBf16}, "op.out");
  check_contiguous(op.out, "op.out");
  check_no_overlap(op.out, "op.out", op.x, "op.x");
}

void access(const ReduceRows& op, Access& a) {
  a.reads(op.x);
  a.add(op.x.bound, sizeof(std::int32_t), false);
  if (op.accumulate) a.reads(op.out);
  a.writes(op.out);
}

void check(const ReduceToScalar& op) {
  check_rank(op.x, 1, "op.x");
  check_dtype(op.x, {DType::kFp32}, "op.x");
  check_contiguous(op.x, "op.x");
  check_shape(op.out, {1}, "op.out");
  check_dtype(op.out, {DType::kFp32}, "op.out");
  check_no_overlap(op.out, "op.out", op.x, "op.x");
}

void access(const ReduceToScalar& op, Access& a) {
  a.reads(op.x);
  if (op.accumulate) a.reads(op.out);
  a.writes(op.out);
}

}  // namespace megalith

#include "core/ops/attention_merge.h"

#include "core/ops/op_checks.h"

namespace megalith {

void check(const AttentionMerge& op) {
  check_rank(op.out, 4, "op.out");
  check_dtype(op.out, {DType::kFp32}, "op.out");
  check_rows(op.out, "op.out");
  check_shape(op.part, op.out.shape, "op.part");
  check_dtype(op.part, kFloatTypes, "op.part");
  check_rows(op.part, "op.part");
  const Shape statistics{op.out.size(0), op.out.size(2), op.out.size(1)};
  check_shape(op.lse, statistics, "op.lse");
  check_dtype(op.lse, {DType::kFp32}, "op.lse");
  check_rows(op.lse, "op.lse");
  check_shape(op.part_lse, statistics, "op.part_lse");
  check_dtype(op.part_lse, {DType::kFp32}, "op.part_lse");
  check_rows(op.part_lse, "op.part_lse");
  check_no_overlap(op.out, "op.out", op.part, "op.part");
  check_no_overlap(op.out, "op.out", op.lse, "op.lse");
  check_no_overlap(op.out, "op.out", op.part_lse, "op.part_lse");
  check_no_overlap(op.lse, "op.lse", op.part, "op.part");
  check_no_overlap(op.lse, "op.lse", op.part_lse, "op.part_lse");
}

void access(const AttentionMerge& op, Access& a) {
  a.reads(op.part);
  a.reads(op.part_lse);
  a.reads(op.out);
  a.reads(op.lse);
  a.writes(op.out);
  a.writes(op.lse);
}

}  // namespace megalith

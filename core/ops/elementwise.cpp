#include "core/ops/elementwise.h"

#include "core/ops/op_checks.h"

namespace megalith {

void check(const Add& op) {
  check_dtype(op.a, kFloatTypes, "op.a");
  check_contiguous(op.a, "op.a");
  check_shape(op.b, op.a.shape, "op.b");
  check_dtype(op.b, {op.a.dtype}, "op.b");
  check_contiguous(op.b, "op.b");
  check_shape(op.y, op.a.shape, "op.y");
  check_dtype(op.y, {op.a.dtype}, "op.y");
  check_contiguous(op.y, "op.y");
  check_same_or_apart(op.a, "op.a", op.y, "op.y");
  check_same_or_apart(op.b, "op.b", op.y, "op.y");
}

void access(const Add& op, Access& a) {
  a.reads(op.a);
  a.reads(op.b);
  a.writes(op.y);
}

void check(const SumParts& op) {
  check_dtype(op.parts, kFloatTypes, "op.parts");
  check_contiguous(op.parts, "op.parts");
  if (op.parts.rank() == 0 || op.parts.size(0) == 0) {
    fail({.subject = "op.parts", .expected = "at least one part", .got = to_string(op.parts.shape)});
  }
  Shape part;
  for (int d = 1; d < op.parts.rank(); ++d) part.push_back(op.parts.size(d));
  check_shape(op.y, part, "op.y");
  check_dtype(op.y, {op.parts.dtype}, "op.y");
  check_contiguous(op.y, "op.y");
  check_no_overlap(op.parts, "op.parts", op.y, "op.y");
}

void access(const SumParts& op, Access& a) {
  a.reads(op.parts);
  a.writes(op.y);
}

void check(const Cast& op) {
  check_dtype(op.x, kFloatTypes, "op.x");
  check_contiguous(op.x, "op.x");
  check_shape(op.y, op.x.shape, "op.y");
  check_dtype(op.y, kFloatTypes, "op.y");
  check_contiguous(op.y, "op.y");
  check_no_overlap(op.x, "op.x", op.y, "op.y");
}

void access(const Cast& op, Access& a) {
  a.reads(op.x);
  a.writes(op.y);
}

void check(const Copy& op) {
  check_shape(op.dst, op.src.shape, "op.dst");
  check_dtype(op.dst, {op.src.dtype}, "op.dst");
  check_no_overlap(op.src, "op.src", op.dst, "op.dst");
}

void access(const Copy& op, Access& a) {
  a.reads(op.src);
  a.writes(op.dst);
}

void check(const Fill& op) { check_rank(op.x, op.x.rank(), "op.x"); }

void access(const Fill& op, Access& a) { a.writes(op.x); }

}  // namespace megalith

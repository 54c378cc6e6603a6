#include "core/ops/fill_normal.h"

#include "core/ops/op_checks.h"

namespace megalith {

void check(const FillNormal& op) {
  check_dtype(op.x, kFloatTypes, "op.x");
  check_contiguous(op.x, "op.x");
}

void access(const FillNormal& op, Access& a) { a.writes(op.x); }

}  // namespace megalith

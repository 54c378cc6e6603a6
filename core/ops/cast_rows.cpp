#include "core/ops/cast_rows.h"

#include <fmt/format.h>

#include "core/ops/op_checks.h"

namespace megalith {

void check(const CastRows& op) {
  if (op.x.rank() < 1 || op.x.rank() > 4)
    fail({.subject = "op.x", .expected = "1 to 4 dims", .got = fmt::format("{}", op.x.rank())});
  check_dtype(op.x, kFloatTypes, "op.x");
  check_rows(op.x, "op.x");
  check_shape(op.y, op.x.shape, "op.y");
  check_dtype(op.y, kFloatTypes, "op.y");
  check_rows(op.y, "op.y");
  check_no_overlap(op.x, "op.x", op.y, "op.y");
}

void access(const CastRows& op, Access& a) {
  a.reads(op.x);
  if (op.accumulate) a.reads(op.y);
  a.writes(op.y);
}

}  // namespace megalith

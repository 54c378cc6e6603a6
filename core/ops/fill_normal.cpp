#include "core/ops/fill_normal.h"

#include <fmt/format.h>

#include "core/ops/op_checks.h"

namespace megalith {

void check(const FillNormal& op) {
  check_rank(op.x, 2, "op.x");
  check_dtype(op.x, kFloatTypes, "op.x");
  check_contiguous(op.x, "op.x");
  if (op.pitch < op.x.size(1)) {
    fail({.subject = "op.pitch",
          .expected = fmt::format("at least {}, the columns of op.x", op.x.size(1)),
          .got = fmt::format("{}", op.pitch)});
  }
}

void access(const FillNormal& op, Access& a) { a.writes(op.x); }

}  // namespace megalith

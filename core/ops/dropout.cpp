#include "core/ops/dropout.h"

#include <fmt/format.h>

#include "core/ops/op_checks.h"

namespace megalith {

void check(const Dropout& op) {
  check_rank(op.x, 2, "op.x");
  check_dtype(op.x, kFloatTypes, "op.x");
  check_rows(op.x, "op.x");
  check_shape(op.y, op.x.shape, "op.y");
  check_dtype(op.y, {op.x.dtype}, "op.y");
  check_rows(op.y, "op.y");
  check_same_or_apart(op.x, "op.x", op.y, "op.y");
  check_pointer(op.parameters, "op.parameters");
  if (!(op.p >= 0 && op.p < 1)) {
    fail({.subject = "op.p", .expected = "0 <= p < 1", .got = fmt::format("{}", op.p)});
  }
  check_range(op.site, 0, 0xFFFFFF, "op.site");
  if (op.rows_per_sample < 1) {
    fail({.subject = "op.rows_per_sample", .expected = "at least 1", .got = fmt::format("{}", op.rows_per_sample)});
  }
  if (op.first_row < 0) {
    fail({.subject = "op.first_row", .expected = "not negative", .got = fmt::format("{}", op.first_row)});
  }
  check_part(op.part, op.rows_per_sample, "op.part");
  if (op.first_column < 0 || op.first_column % 32 != 0) {
    fail({.subject = "op.first_column",
          .expected = "a multiple of 32 that is not negative",
          .got = fmt::format("{}", op.first_column)});
  }
}

void access(const Dropout& op, Access& a) {
  a.add(op.parameters, sizeof(MicrobatchParameters), false);
  a.reads(op.x);
  a.writes(op.y);
}

}  // namespace megalith

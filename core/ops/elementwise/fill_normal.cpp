#include "core/ops/elementwise/fill_normal.h"

#include <fmt/format.h>

#include "core/ops/fields.h"

namespace megalith {

void fields(const FillNormal& op, Fields& f) {
  f.out(op.x, "op.x").floating().rank(2);
  if (op.pitch >= op.x.size(1)) return;
  fail({.subject = "op.pitch",
        .expected = fmt::format("at least {}, the columns of op.x", op.x.size(1)),
        .got = fmt::format("{}", op.pitch)});
}

}  // namespace megalith

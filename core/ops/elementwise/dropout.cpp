#include "core/ops/elementwise/dropout.h"

#include "core/ops/fields.h"

namespace megalith {

void fields(const Dropout& op, Fields& f) {
  f.in(op.parameters, "op.parameters");
  f.in(op.x, "op.x").floating().rank(2).strided_rows();
  f.out(op.y, "op.y").like(op.x).strided_rows().may_be(op.x);
  f.expect(op.p >= 0 && op.p < 1, "op.p", "0 <= p < 1", op.p);
  f.range(op.site, 0, 0xFFFFFF, "op.site");
  f.expect(op.rows_per_sample >= 1, "op.rows_per_sample", "at least 1", op.rows_per_sample);
  f.expect(op.first_row >= 0, "op.first_row", "not negative", op.first_row);
  check_part(op.part, op.rows_per_sample, "op.part");
  f.expect(op.first_column >= 0 && op.first_column % 32 == 0, "op.first_column",
           "a multiple of 32 that is not negative", op.first_column);
}

}  // namespace megalith

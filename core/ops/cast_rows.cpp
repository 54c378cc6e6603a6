#include "core/ops/cast_rows.h"

namespace megalith {

void fields(const CastRows& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(1, 4).strided_rows();
  f.out(op.y, "op.y").floating().shape(op.x.shape).strided_rows().read_if(op.accumulate);
}

}  // namespace megalith

#include "core/ops/elementwise/activation.h"

#include "core/ops/fields.h"

namespace megalith {

void fields(const GeluForward& op, Fields& f) {
  f.in(op.x, "op.x").floating().any_shape();
  f.out(op.y, "op.y").like(op.x).may_be(op.x);
}

void fields(const GeluBackward& op, Fields& f) {
  f.in(op.x, "op.x").floating().any_shape();
  f.in(op.dy, "op.dy").like(op.x);
  f.out(op.dx, "op.dx").like(op.x).may_be(op.dy).may_be(op.x);
}

void fields(const SwigluForward& op, Fields& f) {
  f.out(op.y, "op.y").floating().rank(2).strided_rows();
  f.in(op.x, "op.x").shape({op.y.size(0), 2 * op.y.size(1)}).dtype(op.y.dtype).strided_rows();
}

void fields(const SwigluBackward& op, Fields& f) {
  f.in(op.dy, "op.dy").floating().rank(2).strided_rows();
  f.in(op.x, "op.x").shape({op.dy.size(0), 2 * op.dy.size(1)}).dtype(op.dy.dtype).strided_rows();
  f.out(op.dx, "op.dx").like(op.x).strided_rows().may_be(op.x);
  f.out(op.y, "op.y").like(op.dy).strided_rows().may_be(op.dy).optional();
}

}  // namespace megalith

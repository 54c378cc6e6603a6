#include "core/ops/elementwise/elementwise.h"

#include "core/ops/fields.h"

namespace megalith {

void fields(const Add& op, Fields& f) {
  f.in(op.a, "op.a").floating().any_shape();
  f.in(op.b, "op.b").like(op.a);
  f.out(op.y, "op.y").like(op.a).may_be(op.a).may_be(op.b);
}

void fields(const SumParts& op, Fields& f) {
  f.in(op.parts, "op.parts").floating().rank(1, kMaxDims);
  Shape part;
  for (int d = 1; d < op.parts.rank(); ++d) part.push_back(op.parts.size(d));
  f.out(op.y, "op.y").shape(part).dtype(op.parts.dtype);
  f.expect(op.parts.size(0) > 0, "op.parts", "at least one part", op.parts.shape);
}

void fields(const CastRows& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(1, 4).strided_rows();
  f.out(op.y, "op.y").floating().shape(op.x.shape).strided_rows().read_if(op.accumulate);
}

void fields(const Copy& op, Fields& f) {
  f.in(op.src, "op.src").any_dtype().any_shape().any_strides();
  f.out(op.dst, "op.dst").like(op.src).any_strides();
  f.copies();
}

void fields(const Fill& op, Fields& f) { f.out(op.x, "op.x").any_dtype().any_shape().any_strides(); }

}  // namespace megalith

#include "core/ops/reduce.h"

namespace megalith {

void fields(const ReduceRows& op, Fields& f) {
  f.in(op.x, "op.x").floating().rank(2).strided_rows().bounded();
  f.out(op.out, "op.out").floating().shape({op.x.size(1)}).read_if(op.accumulate);
}

void fields(const ReduceToScalar& op, Fields& f) {
  f.in(op.x, "op.x").dtype(DType::kFp32).rank(1);
  f.out(op.out, "op.out").dtype(DType::kFp32).shape({1}).read_if(op.accumulate);
}

}  // namespace megalith

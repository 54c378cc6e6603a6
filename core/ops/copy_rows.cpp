#include "core/ops/copy_rows.h"

namespace megalith {

void fields(const CopyRows& op, Fields& f) {
  f.in(op.src, "op.src").any_dtype().rank(1, kMaxDims).bounded();
  f.out(op.dst, "op.dst").like(op.src);
  f.inout(op.counted, "op.counted").dtype(DType::kInt64).shape({1}).optional();
  f.copies();
}

}  // namespace megalith

#include "core/ops/attention/attention_merge.h"

#include "core/ops/fields.h"

namespace megalith {

void fields(const AttentionMerge& op, Fields& f) {
  f.inout(op.out, "op.out").dtype(DType::kFp32).rank(4).strided_rows();
  const Shape statistics{op.out.size(0), op.out.size(2), op.out.size(1)};
  f.inout(op.lse, "op.lse").dtype(DType::kFp32).shape(statistics).strided_rows();
  f.in(op.part, "op.part").floating().shape(op.out.shape).strided_rows();
  f.in(op.part_lse, "op.part_lse").dtype(DType::kFp32).shape(statistics).strided_rows();
}

}  // namespace megalith

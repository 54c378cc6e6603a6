#include "core/ops/elementwise/copy_rows.h"

#include <algorithm>

#include "core/ops/fields.h"

namespace megalith {

void fields(const CopyRows& op, Fields& f) {
  const std::int64_t rows = op.src.rank() == 0 ? 0 : op.src.size(0);
  const std::size_t moved = bytes_of_rows(op.src, std::clamp<std::int64_t>(rows - op.first, 0, rows));
  f.in(op.src, "op.src").any_dtype().rank(1, kMaxDims).bounded().moves(moved);
  f.out(op.dst, "op.dst").like(op.src).moves(moved);
  f.range(static_cast<double>(op.first), 0, static_cast<double>(rows), "op.first");
  f.inout(op.counted, "op.counted").dtype(DType::kInt64).shape({1}).optional();
  f.copies();
}

}  // namespace megalith

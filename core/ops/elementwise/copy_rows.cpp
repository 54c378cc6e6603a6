#include "core/ops/elementwise/copy_rows.h"

#include <algorithm>
#include <cstring>

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

void compute(const CopyRows& op) {
  const std::int64_t all = op.src.size(0);
  if (all == 0) return;
  const std::int64_t rows = op.src.bound == nullptr ? all : std::clamp<std::int64_t>(*op.src.bound, op.first, all);
  const std::size_t begin = bytes_of_rows(op.src, op.first), end = bytes_of_rows(op.src, rows);
  std::memcpy(op.dst.as<std::byte>() + begin, op.src.as<const std::byte>() + begin, end - begin);
  if (op.counted) *op.counted.as<std::int64_t>() += static_cast<std::int64_t>(end);
}

}  // namespace megalith

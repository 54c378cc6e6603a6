#include "core/ops/elementwise/copy_rows.h"

#include <algorithm>
#include <cstring>

namespace megalith {

void compute(const CopyRows& op) {
  const std::int64_t all = op.src.size(0);
  if (all == 0) return;
  const std::int64_t rows = op.src.bound == nullptr ? all : std::clamp<std::int64_t>(*op.src.bound, op.first, all);
  const std::size_t begin = bytes_of_rows(op.src, op.first), end = bytes_of_rows(op.src, rows);
  std::memcpy(op.dst.as<std::byte>() + begin, op.src.as<const std::byte>() + begin, end - begin);
  if (op.counted) *op.counted.as<std::int64_t>() += static_cast<std::int64_t>(end);
}

}  // namespace megalith

#include "core/ops/copy_rows.h"

#include <algorithm>
#include <cstring>

namespace megalith {

void compute(const CopyRows& op) {
  const std::int64_t all = op.src.size(0);
  const std::int64_t rows = op.src.bound == nullptr ? all : std::clamp<std::int64_t>(*op.src.bound, 0, all);
  if (rows == 0) return;
  const std::size_t bytes = op.src.bytes() / static_cast<std::size_t>(all) * static_cast<std::size_t>(rows);
  std::memcpy(op.dst.data, op.src.data, bytes);
  if (op.counted) *op.counted.as<std::int64_t>() += static_cast<std::int64_t>(bytes);
}

}  // namespace megalith

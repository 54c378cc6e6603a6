#include "core/ops/copy_rows.h"

#include <algorithm>
#include <cstring>

namespace megalith {

void compute(const CopyRows& op) {
  const std::int64_t all = op.src.size(0);
  if (all == 0) return;
  const std::int64_t rows = op.src.bound == nullptr ? all : std::clamp<std::int64_t>(*op.src.bound, op.first, all);
  const std::int64_t row_bytes = static_cast<std::int64_t>(op.src.bytes()) / all, begin = op.first * row_bytes;
  std::memcpy(op.dst.as<std::byte>() + begin, op.src.as<const std::byte>() + begin,
              static_cast<std::size_t>(rows * row_bytes - begin));
  if (op.counted) *op.counted.as<std::int64_t>() += rows * row_bytes;
}

}  // namespace megalith

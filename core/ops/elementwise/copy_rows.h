// Copies rows between the device and pinned host memory: dst[r] = src[r] for first <= r < rows, byte for byte. Only the
// device knows `rows`; a copy engine would copy all rows.
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

struct CopyRows {
  MEGALITH_OP(CopyRows, "copy_rows");
  Tensor src;              // [R, ...] any dtype; its bound, if it has one, is the number of rows
  Tensor dst;              // out, like src, with its bound; rows beyond it are unchanged
  std::int64_t first = 0;  // earlier rows are copied otherwise, regardless of the bound
  Tensor counted = {};     // [1] int64, in and out: the bytes of max(first, rows) rows are added; may be absent
};

// Returns the bytes of the first `rows` rows of a possibly bounded tensor.
inline std::size_t bytes_of_rows(const Tensor& x, std::int64_t rows) {
  return rows == 0 ? 0 : x.bytes() / static_cast<std::size_t>(x.size(0)) * static_cast<std::size_t>(rows);
}

}  // namespace megalith

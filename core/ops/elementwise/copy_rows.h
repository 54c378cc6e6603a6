// Rows between the device and pinned memory of the host, up to a number that the device knows: dst[r] = src[r] for
// first <= r < rows, byte for byte. The host does not know the number; a copy engine would take them all.
#pragma once

#include "core/ops/op_declaration.h"

namespace megalith {

struct CopyRows {
  MEGALITH_OP(CopyRows, "copy_rows");
  Tensor src;              // [R, ...] any dtype; its bound, if it has one, is the number of rows
  Tensor dst;              // out, like src, its bound too; rows beyond it stay as they are
  std::int64_t first = 0;  // those before it were copied otherwise, however many are in use
  Tensor counted = {};     // [1] int64, in and out: the bytes of max(first, rows) rows are added; may be absent
};

// Of the first `rows` of a tensor, which may be bounded.
inline std::size_t bytes_of_rows(const Tensor& x, std::int64_t rows) {
  return rows == 0 ? 0 : x.bytes() / static_cast<std::size_t>(x.size(0)) * static_cast<std::size_t>(rows);
}

}  // namespace megalith

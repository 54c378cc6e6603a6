// Rows between the device and pinned memory of the host, as many as a number on the device says: dst[r] = src[r] for
// r < rows, byte for byte. The host does not know the number; a copy engine would take them all.
#pragma once

#include "core/ops/op.h"
#include "core/tensor/tensor.h"

namespace megalith {

struct CopyRows {
  static constexpr const char* kName = "copy_rows";
  Tensor src;           // [R, ...] any dtype; its bound, if it has one, is the number of rows
  Tensor dst;           // out, like src, its bound too; rows beyond it stay as they are
  Tensor counted = {};  // [1] int64, in and out: the bytes of these rows are added; may be absent
};

void fields(const CopyRows& op, Fields& f);
void compute(const CopyRows& op);
void run(CudaStream& stream, const CopyRows& op);

}  // namespace megalith

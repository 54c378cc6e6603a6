// An op is a struct of named arguments with four functions found by overload:
//   void check(const Op&)                     throws Error on wrong shapes, dtypes or overlaps
//   void access(const Op&, Access&)           what it reads and writes, and its FLOPs
//   void run(CpuStream&, const Op&)           enqueues its kernel
//   void run(CudaStream&, const Op&)          one overload per backend, a missing one is a link error
//   static constexpr const char* kName        name in traces, plans and errors
// Kernels neither allocate nor synchronise; scratch is a field of the op that the layer allocates. Zero rows are legal.
#pragma once

#include "core/device/stream.h"
#include "core/tensor/tensor.h"

namespace megalith {

template <class Op>
void launch(Stream& stream, const Op& op) {
  check(op);
  if (stream.wants_access()) {
    Access accesses(Op::kName);
    access(op, accesses);
    stream.announce(accesses);
  }
  if (CpuStream* cpu = stream.cpu()) run(*cpu, op);
  if (CudaStream* cuda = stream.cuda()) {
    const CudaStream::Range range(Op::kName);
    run(*cuda, op);
  }
  stream.end_op();
}

}  // namespace megalith

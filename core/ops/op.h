// An op is a struct of named arguments with three functions found by overload:
//   void fields(const Op&, Fields&)           what it reads and writes and what that has to be (fields.h)
//   void run(CpuStream&, const Op&)           enqueues its kernel
//   void run(CudaStream&, const Op&)          one overload per backend, a missing one is a link error
//   static constexpr const char* kName        name in traces, plans and errors
// Kernels neither allocate nor synchronise; scratch is a field of the op that the layer allocates. Zero rows are legal.
#pragma once

#include <type_traits>

#include "core/device/stream.h"
#include "core/ops/fields.h"
#include "core/tensor/tensor.h"

namespace megalith {

template <class Op>
concept HasFields = requires(const Op& op, Fields& f) {
  fields(op, f);
};

// Throws Error on a wrong shape, dtype, layout, overlap or bound.
template <HasFields Op>
void check(const Op& op) {
  Fields list;
  fields(op, list);
  list.close();
}

// What the op reads and writes, and its cost.
template <HasFields Op>
void access(const Op& op, Access& a) {
  Fields list(&a);
  fields(op, list);
  list.close();
}

template <class Op>
void launch(Stream& stream, const Op& op) {
  check(op);
  if (stream.wants_access()) {
    Access accesses(Op::kName);
    access(op, accesses);
    stream.announce(accesses);
  }
  stream.visit([&op](auto& backend) {
    using Backend = std::remove_reference_t<decltype(backend)>;
    if constexpr (!std::is_same_v<Backend, PlanStream>) {
      [[maybe_unused]] const typename Backend::Range range(Op::kName);
      run(backend, op);
    }
  });
  stream.end_op();
}

}  // namespace megalith

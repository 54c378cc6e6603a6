// An op is a struct of named arguments with functions found by overload:
//   void fields(const Op&, Fields&)           reads, writes and their requirements (fields.h)
//   void compute(const Op&)                   its kernel on the CPU
//   void run(CudaStream&, const Op&)          enqueues it on CUDA; a missing one of the three is a link error
//   static constexpr const char* kName        name in traces, plans and errors
// MEGALITH_OP declares them (op_declaration.h). Kernels neither allocate nor synchronize. A kernel's workspace is the
// field `workspace` of
//   std::size_t workspace_bytes(const Op&, DeviceType)
// bytes, which launch(ctx, op) allocates (core/layers/context.h). Zero rows are legal.
#pragma once

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

// Returns the op's reads, writes and cost.
template <HasFields Op>
void access(const Op& op, Access& a) {
  Fields list(&a);
  fields(op, list);
  list.close();
}

template <class Op>
concept HasWorkspace = requires(const Op& op) {
  workspace_bytes(op, DeviceType::kCuda);
};

// Sets the workspace required on `device`, from allocate(bytes).
template <HasWorkspace Op, class Allocate>
void add_workspace(Op& op, DeviceType device, Allocate&& allocate) {
  const std::size_t bytes = workspace_bytes(op, device);
  if (bytes > 0) op.workspace = allocate(static_cast<std::int64_t>(bytes));
}
template <HasWorkspace Op, class Allocate>
Op with_workspace(Op op, DeviceType device, Allocate&& allocate) {
  add_workspace(op, device, allocate);
  return op;
}

void check_workspace(const Tensor& workspace, std::size_t needed, DeviceType device);

template <class Op>
void launch(Stream& stream, const Op& op) {
  check(op);
  if constexpr (HasWorkspace<Op>) {
    if (stream.device() != DeviceType::kPlan)
      check_workspace(op.workspace, workspace_bytes(op, stream.device()), stream.device());
  }
  if (stream.needs_access()) {
    Access accesses(Op::kName);
    access(op, accesses);
    stream.announce(accesses);
  }
  if (CpuStream* cpu = stream.cpu()) cpu->enqueue([op] { compute(op); });
  if (CudaStream* cuda = stream.cuda()) {
    const CudaStream::Range range(Op::kName);
    run(*cuda, op);
  }
  stream.end_op();
}

}  // namespace megalith

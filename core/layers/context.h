// Arguments of every verb of every segment that are fixed for the run. The microbatch (microbatch.h) varies.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/device/stream.h"
#include "core/memory/arena.h"
#include "core/ops/op.h"
#include "core/tensor/tensor.h"

namespace megalith {

class RowSums;

struct Context {
  Stream& compute;
  Arena& arena;
  std::uint64_t seed = 0;                     // seed of dropout
  DeviceType planned_for = DeviceType::kCpu;  // backend that a plan stream records for
  bool deterministic = true;                  // --deterministic-mode: only kernels whose bits repeat
  RowSums* row_sums = nullptr;                // optional: collects the sums of add_row_sums (row_sums.h)

  // Returns the backend of the kernels, also while planning.
  DeviceType backend() const { return compute.device() == DeviceType::kPlan ? planned_for : compute.device(); }

  // Allocates a tensor with undefined contents.
  Tensor empty(const Shape& shape, DType dtype, std::string_view owner) const {
    const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
    return Tensor(arena.allocate(bytes, MemoryCategory::kWorkspace, owner), dtype, shape);
  }
};

// Launches an op with a workspace from the arena.
template <HasWorkspace Op>
void launch(const Context& ctx, Op op) {
  const auto allocate = [&ctx](std::int64_t bytes) { return ctx.empty({bytes}, DType::kUint8, "workspace"); };
  add_workspace(op, ctx.backend(), allocate);
  launch(ctx.compute, op);
}

}  // namespace megalith

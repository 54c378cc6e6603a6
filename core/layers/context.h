// What every verb of every segment runs with: fixed for the run. What varies is the microbatch (microbatch.h).
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
  std::uint64_t seed = 0;                     // of dropout
  DeviceType planned_for = DeviceType::kCpu;  // the backend that a plan stream records for
  bool deterministic = true;                  // --deterministic-mode: never a kernel whose last bits vary
  RowSums* row_sums = nullptr;                // where set, what add_row_sums adds up later (row_sums.h)

  // The backend whose kernels run, or will.
  DeviceType backend() const { return compute.device() == DeviceType::kPlan ? planned_for : compute.device(); }

  // Contents undefined until an op writes them.
  Tensor empty(const Shape& shape, DType dtype, std::string_view owner) const {
    const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
    return Tensor(arena.allocate(bytes, MemoryCategory::kWorkspace, owner), dtype, shape);
  }
};

// For ops that need a workspace, which they get from the arena.
template <HasWorkspace Op>
void launch(const Context& ctx, Op op) {
  const auto allocate = [&ctx](std::int64_t bytes) { return ctx.empty({bytes}, DType::kUint8, "workspace"); };
  add_workspace(op, ctx.backend(), allocate);
  launch(ctx.compute, op);
}

}  // namespace megalith

// What a verb of a segment runs with: fixed for the run, except for the microbatch it is called for.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/device/arena.h"
#include "core/device/stream.h"
#include "core/layers/stash.h"
#include "core/ops/device_parameters.h"
#include "core/ops/op.h"
#include "core/ops/sequence_part.h"
#include "core/tensor/tensor.h"

namespace megalith {

enum class Mode : std::uint8_t { kTrain, kEval, kGenerate };

// A caller's buffers for generation: per layer the keys and values of all positions so far.
struct KvCache {
  std::vector<Tensor> keys;  // [B, M, K, D] per layer
  std::vector<Tensor> values;
  const std::int32_t* start = nullptr;  // device: position of the first token of this call
};

// Device buffers of one microbatch. T = B * S tokens, row b * S + s.
struct Batch {
  Tensor tokens;                // [T] int32
  Tensor labels;                // [T] int32; absent in generate mode
  std::int64_t sequences = 0;   // B
  std::int64_t seq_length = 0;  // S: of this rank, where ranks share a sequence
  SequencePart part;            // positions of the S tokens
};

struct Context {
  Stream& compute;
  Arena& arena;
  Mode mode = Mode::kTrain;
  StashPolicies policies{};
  std::uint64_t seed = 0;
  DeviceType planned_for = DeviceType::kCpu;  // the backend that a plan stream records for
  bool deterministic = true;                  // --deterministic-mode: never a kernel whose last bits vary

  // The backend whose kernels run, or will.
  DeviceType backend() const { return compute.device() == DeviceType::kPlan ? planned_for : compute.device(); }

  Batch batch;
  const MicrobatchParameters* microbatch = nullptr;  // device
  Tensor loss_sum;                                   // [1] fp32, device: the head adds its tokens' losses
  KvCache* cache = nullptr;                          // generate mode

  // Contents undefined until an op writes them.
  Tensor empty(const Shape& shape, DType dtype, std::string_view owner) const {
    const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
    return Tensor(arena.allocate(bytes, MemoryCategory::kWorkspace, owner), dtype, shape);
  }
};

// For ops that need a workspace, which they get from the arena.
template <HasWorkspace Op>
void launch(const Context& ctx, const Op& op) {
  const auto allocate = [&ctx](std::int64_t bytes) { return ctx.empty({bytes}, DType::kUint8, "workspace"); };
  launch(ctx.compute, with_workspace(op, ctx.backend(), allocate));
}

}  // namespace megalith

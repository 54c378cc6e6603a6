// A microbatch is a value, an argument of the verbs. Its tensors are device memory that stays where it is while the
// microbatch is in flight; what varies per step is in it (MicrobatchParameters), so that a captured graph bakes in
// addresses alone.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/device_parameters.h"
#include "core/ops/sequence_part.h"
#include "core/tensor/tensor.h"

namespace megalith {

enum class Mode : std::uint8_t { kTrain, kEval, kGenerate };

// What the segments of a step sum over its microbatches, fp32 in one device tensor: [loss, then of each layer of
// experts its kAuxLoss and kZLoss].
enum class StepSum : std::uint8_t {
  kLoss,     // of the tokens, not scaled
  kAuxLoss,  // of a router, weighed to be added to kLoss
  kZLoss,    // likewise
};
constexpr std::int64_t num_step_sums(std::int64_t expert_layers) { return 1 + 2 * expert_layers; }
// `expert_layer` counts the layers of experts of the whole model.
constexpr std::int64_t index_of(StepSum which, std::int64_t expert_layer = 0) {
  return which == StepSum::kLoss ? 0 : 2 * expert_layer + static_cast<std::int64_t>(which);
}

// A caller's buffers for generation: per layer the keys and values of all positions so far.
struct KvCache {
  std::vector<Tensor> keys;  // [B, M, K, D] per layer
  std::vector<Tensor> values;
  const std::int32_t* start = nullptr;  // device: position of the first token of this call
};

// T = B * S tokens, row b * S + s.
struct Microbatch {
  Mode mode = Mode::kTrain;
  std::int64_t sequences = 0;                        // B
  std::int64_t seq_length = 0;                       // S: of this rank, where ranks share a sequence
  SequencePart part;                                 // positions of the S tokens
  Tensor tokens;                                     // [T] int32
  Tensor labels;                                     // [T] int32; absent in generate mode
  const MicrobatchParameters* parameters = nullptr;  // device
  Tensor sums;                                       // [num_step_sums] fp32, device; head and routers add to it
  Tensor expert_counts;   // optional, [layers of experts, E] int32, device: routers add to it
  Tensor balance_counts;  // optional, likewise: of microbatches before this one, for a loss over the global batch
  // Where experts are spread over ranks, of a step on this rank; both optional, device:
  Tensor room_needed;  // [2] int32: the most rows that arrived in a layer and microbatch, and rows of its experts
  Tensor rows_sent;    // [layers of experts, P] int32: to each rank of the dispatch group
  const KvCache* cache = nullptr;  // generate mode

  // [1]
  Tensor sum(StepSum which, std::int64_t expert_layer = 0) const {
    return sums.slice(0, index_of(which, expert_layer), 1);
  }
};

}  // namespace megalith

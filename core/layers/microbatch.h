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

// What the segments of a step sum over its microbatches, one fp32 each in one device tensor [kNumStepSums].
enum class StepSum : std::uint8_t {
  kLoss,     // of the tokens, not scaled
  kAuxLoss,  // of the routers of all layers, weighed to be added to kLoss
  kZLoss,    // likewise
};
inline constexpr int kNumStepSums = 3;

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
  Tensor sums;                                       // [kNumStepSums] fp32, device; the head adds to it
  Tensor expert_counts;                              // optional, [a row a layer, E] int32, device: routers add to it
  Tensor balance_counts;                             // optional, [layers, E] int32, device: as expert_counts, of
                                                     // microbatches before this one, for a loss over the global batch
  const KvCache* cache = nullptr;                    // generate mode

  Tensor sum(StepSum which) const { return sums.slice(0, static_cast<std::int64_t>(which), 1); }  // [1]
};

}  // namespace megalith

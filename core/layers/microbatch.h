// A microbatch, passed by value to the verbs. Its tensors are device memory with fixed addresses while the microbatch
// is in flight. Values that vary per step are in device memory (MicrobatchParameters), so that a captured graph
// contains addresses only.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/attention/document_rows.h"
#include "core/ops/device_parameters.h"
#include "core/ops/sequence_part.h"
#include "core/tensor/tensor.h"

namespace megalith {

enum class Mode : std::uint8_t { kTrain, kEval, kGenerate };

// Sums of segments over a step's microbatches, fp32 in one device tensor: [loss, then kAuxLoss and kZLoss of each MoE
// layer].
enum class StepSum : std::uint8_t {
  kLoss,     // over tokens, not scaled
  kAuxLoss,  // a router's, weighted for addition to kLoss
  kZLoss,    // weighted like kAuxLoss
};
constexpr std::int64_t num_step_sums(std::int64_t expert_layers) { return 1 + 2 * expert_layers; }
// `expert_layer` is the index among all MoE layers of the model.
constexpr std::int64_t index_of(StepSum which, std::int64_t expert_layer = 0) {
  return which == StepSum::kLoss ? 0 : 2 * expert_layer + static_cast<std::int64_t>(which);
}

// Documents of a microbatch. Rows count from its first one: of this rank or, if ranks split heads for attention, of
// unsplit sequences.
struct Documents : DocumentRows {
  std::int64_t max_length = 0;  // of one document
  double pairs = 0;             // expected sum of their squared lengths, for costs; 0: unknown
  // [C - 1, 4, B] int32, device, if C ranks exchange keys: with the keys of another rank each sequence shares one
  // document at most. Entry s - 1 is for the keys of rank r - s: first queries, their number, first keys, their number.
  Tensor shared;

  DocumentRows shared_rows(int step, int first) const {
    const auto row = [&](int which) {
      return shared.slice(0, step - 1, 1).view({4, shared.size(2)}).slice(0, which, 1).view({shared.size(2)});
    };
    return {.begin = row(first), .length = row(first + 1)};
  }
  DocumentRows shared_queries(int step) const { return shared_rows(step, 0); }
  DocumentRows shared_keys(int step) const { return shared_rows(step, 2); }
};

// The caller's buffers for generation: per layer, the keys and values of all positions so far.
struct KvCache {
  std::vector<Tensor> keys;  // [B, M, K, D] per layer
  std::vector<Tensor> values;
  const std::int32_t* start = nullptr;  // device: position of the call's first token
};

// Microbatch of T = B * S tokens, row b * S + s.
struct Microbatch {
  Mode mode = Mode::kTrain;
  std::int64_t sequences = 0;   // B
  std::int64_t seq_length = 0;  // S: of this rank, if ranks split a sequence
  SequencePart part;            // positions of the S tokens
  Tensor tokens;                // [T] int32
  Tensor labels;                // [T] int32, below 0: no loss; absent in generate mode without token_losses
  Tensor positions;             // optional, [T] int32: positions of the tokens instead of `part`; -1: padding
  Documents documents;          // optional: attention does not cross them
  const MicrobatchParameters* parameters = nullptr;  // device
  Tensor sums;                                       // [num_step_sums] fp32, device; head and routers add to it
  Tensor expert_counts;                              // optional, [MoE layers, E] int32, device: routers add to it
  Tensor balance_counts;  // optional, same shape, device: earlier microbatches' counts, for a global loss
  // Counts of a step on this rank under expert parallelism; both optional, device:
  Tensor room_needed;              // [2] int32: most arrived rows of a layer and microbatch, and rows of its experts
  Tensor rows_sent;                // [MoE layers, P] int32: rows sent to each rank of the dispatch group
  const KvCache* cache = nullptr;  // generate mode
  // Optional, [T] fp32, device, generate mode: the head writes the loss of each row instead of returning logits.
  Tensor token_losses;

  // [1]
  Tensor sum(StepSum which, std::int64_t expert_layer = 0) const {
    return sums.slice(0, index_of(which, expert_layer), 1);
  }
};

}  // namespace megalith

// Conversion of the model's state to shards of a checkpoint and back: weights, separate main parameters and both
// moments, by logical name.
#pragma once

#include <span>
#include <vector>

#include "core/device/stream.h"
#include "core/layers/parameter.h"
#include "core/optim/adamw_optimizer.h"
#include "core/tensor/tensor.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/communicator.h"

namespace megalith {

// A part of the model's state that this rank writes. Ranks write their shards of a distributed optimizer as slices of
// logical tensors. One of the ranks with a copy writes any other state. So saving gathers nothing. The list is equal
// for every save of a run.
struct WrittenShard {
  Shard shard;    // without data
  Tensor tensor;  // contiguous, on the device
};
// Ranks that hold the same state, for units of these kinds.
struct StateHolders {
  const Communicator* replicas;
  const Communicator* instances;  // with the same shard in other instances; null: none
  std::vector<UnitKind> kinds;
};
// Without `optimizer` only weights.
std::vector<WrittenShard> shards_to_write(const ParameterStore& parameters, const AdamWOptimizer* optimizer,
                                          std::span<const StateHolders> holders);

// Saves the shards by copies in host memory, after the work that `stream` has enqueued; `request` has no shards.
// Collective over its ranks. Error kOutOfMemory if host memory is insufficient.
SaveResult save_shards(const std::vector<WrittenShard>& shards, Stream& stream, SaveRequest request);

// Parts of a checkpoint to load: everything, or only weights (--finetune, --no-load-optim, generate).
enum class LoadScope { kEverything, kWeights };
// Fails (exit code 4) and lists missing, unexpected and mis-shaped tensors. Moments with another saved dtype are
// converted.
struct LoadTarget {
  ParameterStore& parameters;
  const ParameterStore* all_parameters = nullptr;  // of the complete model, declared, if `parameters` are a part
  AdamWOptimizer* optimizer = nullptr;             // null for kWeights
  Stream& stream;
};
void load_tensors(const LoadTarget& target, LoadedCheckpoint& checkpoint, LoadScope scope);

}  // namespace megalith

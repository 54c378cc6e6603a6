// The model's state as shards of a checkpoint: weights, main parameters (where they are not the weights), both moments,
// by logical name; and back.
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

// A part of the model's state that this rank writes. A distributed optimizer's shards are written by the ranks that
// hold them, as the slices of logical tensors that they are; all else by one of the ranks that hold it. So nothing is
// gathered for a checkpoint. The same list at every save of a run.
struct WrittenShard {
  Shard shard;    // without data
  Tensor tensor;  // contiguous, on the device
};
// Ranks that hold the state of units of these kinds too.
struct StateHolders {
  const Communicator* replicas;
  const Communicator* instances;  // of the same shard in other instances; null: none do
  std::vector<UnitKind> kinds;
};
std::vector<WrittenShard> shards_to_write(const ParameterStore& parameters, const AdamWOptimizer& optimizer,
                                          std::span<const StateHolders> holders);

// Saves them by copies in host memory, after what `stream` has enqueued; `request` has no shards. Collective over its
// ranks. Error kOutOfMemory where there is no room for the copies.
SaveResult save_shards(const std::vector<WrittenShard>& shards, Stream& stream, SaveRequest request);

// What is taken from a checkpoint: all of it, or the weights alone (--finetune, --no-load-optim, generate).
enum class LoadScope { kEverything, kWeights };
// Fails (exit code 4) with the names that are missing, extra or of another shape. Moments that were saved in another
// dtype are converted.
struct LoadTarget {
  ParameterStore& parameters;
  const ParameterStore* all_parameters = nullptr;  // of the whole model where `parameters` are a part; declared
  AdamWOptimizer* optimizer = nullptr;             // null with kWeights: there is none
  Stream& stream;
};
void load_tensors(const LoadTarget& target, LoadedCheckpoint& checkpoint, LoadScope scope);

}  // namespace megalith

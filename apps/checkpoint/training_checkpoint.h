// A run's state as checkpoint shards: weights, main parameters (where they are not the weights), both moments, by
// logical name; and back.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/run/rank.h"
#include "core/checkpoint/train_state.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/communicator.h"

namespace megalith {

// The checkpoint of --load and --ckpt-step, as find_checkpoint finds it. `ranks` as in LoadRequest.
std::optional<LoadedCheckpoint> find_wanted(const CheckpointOptions& wanted, Communicator* ranks,
                                            CheckpointHistory* history = nullptr);
// The same on one rank, where there must be one.
LoadedCheckpoint load_wanted(const CheckpointOptions& wanted);
[[noreturn]] void refuse_no_checkpoint(const std::string& folder, const std::string& remedy);  // kNoCheckpoint

// A part of the model's state that this rank writes. A distributed optimizer's shards are written by the ranks that
// hold them, as the slices of logical tensors that they are; all else by one of the ranks that hold it. So nothing is
// gathered for a checkpoint. The same list at every save of a run.
struct WrittenShard {
  Shard shard;    // without data
  Tensor tensor;  // contiguous, on the device
};
std::vector<WrittenShard> shards_to_write(const Rank& rank);

// Saves the rank's state; `request` has no shards. Collective over its ranks.
SaveResult save_training_checkpoint(Rank& rank, SaveRequest request);

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

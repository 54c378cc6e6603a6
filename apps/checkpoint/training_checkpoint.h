// Checkpoints of a run: the checkpoint to load, and a rank's state as its shards (model_state.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/run/rank.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/model_state.h"

namespace megalith {

// Checkpoint of --load and --ckpt-step, as find_checkpoint finds it. `ranks`: see LoadRequest.
std::optional<LoadedCheckpoint> find_wanted(const CheckpointOptions& wanted, Communicator* ranks,
                                            CheckpointHistory* history = nullptr);
// Checkpoint of --load and --ckpt-step on one rank; a missing checkpoint is an error.
LoadedCheckpoint load_wanted(const CheckpointOptions& wanted);
[[noreturn]] void refuse_no_checkpoint(const std::string& folder, const std::string& remedy);  // kNoCheckpoint

std::vector<WrittenShard> shards_to_write(const Rank& rank);

// Saves the rank's state; `request` has no shards. Collective over its ranks.
SaveResult save_training_checkpoint(Rank& rank, SaveRequest request);

}  // namespace megalith

// The checkpoints of a run: which it loads, and a rank's state as its shards (model_state.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/run/rank.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/model_state.h"

namespace megalith {

// The checkpoint of --load and --ckpt-step, as find_checkpoint finds it. `ranks` as in LoadRequest.
std::optional<LoadedCheckpoint> find_wanted(const CheckpointOptions& wanted, Communicator* ranks,
                                            CheckpointHistory* history = nullptr);
// The same on one rank, where there must be one.
LoadedCheckpoint load_wanted(const CheckpointOptions& wanted);
[[noreturn]] void refuse_no_checkpoint(const std::string& folder, const std::string& remedy);  // kNoCheckpoint

std::vector<WrittenShard> shards_to_write(const Rank& rank);

// Saves the rank's state; `request` has no shards. Collective over its ranks.
SaveResult save_training_checkpoint(Rank& rank, SaveRequest request);

}  // namespace megalith

// A run's state as checkpoint shards: weights, main parameters (where they are not the weights), both moments, by
// logical name; and back.
#pragma once

#include <functional>
#include <string>

#include "apps/model_builder.h"
#include "core/checkpoint/train_state.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/communicator.h"

namespace megalith {

RankSync rank_sync(Communicator& world);

struct SaveCheckpoint {
  TrainingModel& model;
  Communicator& world;
  TrainState state;
  std::string directory;
  int keep_last = 0;
  VerifiedCheckpoints* verified = nullptr;
};
SaveResult save_training_checkpoint(const SaveCheckpoint& request);

// What is taken from a checkpoint: all of it, or the weights alone (--finetune, --no-load-optim, generate).
enum class LoadScope { kEverything, kWeights };
// Fails (exit code 4) with the names that are missing, extra or of another shape.
void load_tensors(ParameterStore& parameters, AdamWOptimizer* optimizer, Stream& stream, LoadedCheckpoint& checkpoint,
                  LoadScope scope);

}  // namespace megalith

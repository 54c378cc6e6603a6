#include "apps/checkpoint/training_checkpoint.h"

#include <utility>

#include "apps/config/checkpoint_options.h"
#include "core/base/error.h"

namespace megalith {

std::optional<LoadedCheckpoint> find_wanted(const CheckpointOptions& wanted, Communicator* ranks,
                                            CheckpointHistory* history) {
  return find_checkpoint({.directory = wanted.load,
                          .step = wanted.ckpt_step > 0 ? std::optional(wanted.ckpt_step) : std::nullopt,
                          .history = history,
                          .ranks = ranks});
}

LoadedCheckpoint load_wanted(const CheckpointOptions& wanted) {
  std::optional<LoadedCheckpoint> found = find_wanted(wanted, nullptr);
  if (!found) refuse_no_checkpoint(wanted.load, "give the folder that train --save wrote");
  return std::move(*found);
}

void refuse_no_checkpoint(const std::string& folder, const std::string& remedy) {
  fail({.code = ExitCode::kNoCheckpoint,
        .subject = "--load " + folder,
        .expected = "a checkpoint",
        .got = "none",
        .remedy = remedy,
        .show_place = false});
}

std::vector<WrittenShard> shards_to_write(const Rank& rank) {
  std::vector<StateHolders> holders;
  for (const ReplicaGroups* groups : rank.groups.all())
    holders.push_back({&groups->replicas, groups->instances(), rank.groups.kinds_of(*groups)});
  const AdamWOptimizer* const optimizer = rank.options.checkpoint.no_save_optim ? nullptr : &rank.optimizer.adamw;
  return shards_to_write(*rank.model.gpt.parameters, optimizer, holders);
}

SaveResult save_training_checkpoint(Rank& rank, SaveRequest request) {
  rank.wait_for_parameters();
  return save_shards(shards_to_write(rank), rank.streams.compute, std::move(request));
}

}  // namespace megalith

// --async-save: the step waits for nothing but a copy of the rank's shards into host memory that was taken before the
// first step, and the update after it for that copy; a thread writes and commits the copy beside the following steps.
#pragma once

#include <optional>
#include <vector>

#include "apps/checkpoint/training_checkpoint.h"
#include "apps/run/step.h"
#include "core/memory/host_arena.h"
#include "parallel/checkpoint/background_save.h"

namespace megalith {

// Bytes of host memory for a copy of these shards.
std::size_t staging_bytes(const std::vector<WrittenShard>& shards);

class AsyncSave {
 public:
  // `writers`: a group of all ranks whose host calls nobody else makes. The shards' addresses stay until the end of
  // the run. Exit code 6 when the host memory is refused.
  AsyncSave(Rank& rank, Step& step, Communicator& writers);

  // Begins to save what the enqueued steps leave; no save may be pending. Does not wait for the copy. `request` has no
  // shards. Collective among the writers.
  void begin(SaveRequest request);
  // As BackgroundSave's; a pending save is waited for at the end.
  bool pending() const { return writer_.pending(); }
  std::optional<SaveResult> poll() { return writer_.poll(); }
  SaveResult wait() { return writer_.wait(); }

  double copy_seconds() const { return seconds_between(copy_begun_, copied_); }  // of the last save's, on the device
  std::size_t bytes() const { return staging_.bytes(); }

 private:
  Rank& rank_;
  Step& step_of_run_;
  Communicator& writers_;
  std::vector<WrittenShard> shards_;  // their data is in `staging_`
  HostArena staging_;
  std::vector<std::byte*> host_;  // in it, by shard
  Stream stream_;
  Event updated_{"parameters updated"};
  Event copy_begun_{"checkpoint copy begins", true};
  Event copied_{"checkpoint copied", true};
  BackgroundSave writer_;  // the last member: its thread reads the others
};

}  // namespace megalith

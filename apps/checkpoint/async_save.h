// --async-save: the step waits only for a copy of the rank's shards into host memory, which is allocated ahead of the
// first step. A thread writes and commits the copy concurrently with the following steps.
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
  // `writers`: group of all ranks that no other code uses for host calls. The addresses of the shards stay valid until
  // the end of the run. Exit code 6 if the host memory cannot be allocated.
  AsyncSave(Rank& rank, Step& step, Communicator& writers);

  // Begins to save the state after the enqueued steps, without waiting for the copy; no save may be pending. `request`
  // has no shards. Collective among the writers.
  void begin(SaveRequest request);
  // State of BackgroundSave; the end waits for a pending save.
  bool pending() const { return writer_.pending(); }
  std::optional<SaveResult> poll() { return writer_.poll(); }
  SaveResult wait() { return writer_.wait(); }

  double copy_seconds() const { return seconds_between(copy_begun_, copied_); }  // of the last save, on the device
  std::size_t bytes() const { return staging_.bytes(); }

 private:
  Rank& rank_;
  Step& step_of_run_;
  Communicator& writers_;
  std::vector<WrittenShard> shards_;  // with data in `staging_`
  HostArena staging_;
  std::vector<std::byte*> host_;  // in `staging_`, by shard
  Stream stream_;
  Event updated_{"parameters updated"};
  Event copy_begun_{"checkpoint copy begins", true};
  Event copied_{"checkpoint copied", true};
  BackgroundSave writer_;  // last member, as its thread reads the others
};

}  // namespace megalith

// --async-save: the step waits for nothing but a copy of the rank's shards into host memory that was taken before the
// first step, and the update after it for that copy; a thread writes and commits the copy beside the following steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "apps/step.h"
#include "apps/training_checkpoint.h"
#include "core/device/host_arena.h"
#include "parallel/checkpoint/background_save.h"

namespace megalith {

// Bytes of host memory for a copy of these shards.
std::size_t staging_bytes(const std::vector<WrittenShard>& shards);

class AsyncSave {
 public:
  struct Finished {
    std::int64_t step = 0;
    SaveResult save;
    double copy_seconds = 0;  // of the device's copy to host memory
  };

  // `writers`: a group of all ranks whose host calls nobody else makes. The shards' addresses stay until the end of
  // the run. Exit code 6 when the host memory is refused.
  AsyncSave(Rank& rank, Step& step, Communicator& writers);
  ~AsyncSave();  // waits for a pending save

  // Begins to save what the enqueued steps leave; no save may be pending. Does not wait for the copy. Collective;
  // request.world is not used.
  void begin(const SaveCheckpoint& request);
  bool pending() const { return writer_.pending(); }  // begun, and its result not taken
  // As BackgroundSave's.
  std::optional<Finished> poll();
  Finished wait();

  std::size_t bytes() const { return staging_.bytes(); }

 private:
  Finished finished(SaveResult save);

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
  std::int64_t step_ = 0;  // of the pending save
  BackgroundSave writer_;  // the last member: its thread reads the others
};

}  // namespace megalith

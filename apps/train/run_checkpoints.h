// A run's checkpoints: the one it starts from, and those that it saves, at once or with --async-save while the next
// steps run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/checkpoint/async_save.h"
#include "apps/train/run_setup.h"

namespace megalith {

class RunCheckpoints {
 public:
  // All outlive this object. `save_group`, with --async-save: all ranks, for nobody else's calls.
  RunCheckpoints(RunSetup& setup, Rank& rank, Step& step, Communicator& world, Communicator* save_group);

  // Of --load, into the model and `state`. Collective; what fails on one rank fails there alone.
  void load(TrainState& state);

  // All collective. False if the checkpoint could not be written; the run goes on. With --async-save only begun.
  bool save(const TrainState& state);
  bool finish(std::int64_t step);  // waits for the one that is under way; true if there is none
  void poll();                     // tells if it is over
  bool cannot_save() const;        // --max-failed-saves is reached
  std::string failure(std::int64_t step) const;
  std::int64_t failed() const { return failed_; }

  // Seconds that saving has held up the run's thread since the last call.
  std::optional<double> take_stall() { return std::exchange(stall_, std::nullopt); }
  std::size_t staging_bytes() const { return async_ ? async_->bytes() : 0; }
  std::int64_t waited_for() const { return waited_for_; }               // still under way when the next one was due
  void observe(const FileObserver* observer) { observer_ = observer; }  // for tests
  // Called on rank 0 before each save with its folder; what it throws fails the save.
  void hold_folder(std::function<void(const Directory&)> hold) { hold_folder_ = std::move(hold); }

 private:
  bool end(const SaveResult& result);  // tells; true if it saved
  bool is_main() const { return world_.rank() == 0; }

  RunSetup& setup_;
  Rank& rank_;
  Communicator& world_;
  CheckpointHistory history_;
  std::unique_ptr<AsyncSave> async_;  // its thread uses the members before it
  std::function<void(const Directory&)> hold_folder_;
  const FileObserver* observer_ = nullptr;
  double async_stall_ = 0;       // seconds that the run's thread spent on the save under way
  std::optional<double> stall_;  // seconds, of the save before the current step
  std::int64_t waited_for_ = 0;
  std::int64_t failed_ = 0;
  std::int64_t failed_in_row_ = 0;  // since the last that succeeded; the same on all ranks after finish()
  std::string problem_;             // of the last of them
  std::int64_t last_saved_ = -1;    // step
};

}  // namespace megalith

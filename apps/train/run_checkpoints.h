// Checkpoints of a run: the checkpoint that it starts from, and those that it saves, at once or with --async-save while
// the next steps run.
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
  // All arguments outlive this object. `save_group`: with --async-save a group of all ranks for the save's calls only.
  RunCheckpoints(RunSetup& setup, Rank& rank, Step& step, Communicator& world, Communicator* save_group);

  // Loads the checkpoint of --load into the model and `state`. Collective; a failure on one rank stays on this rank.
  void load(TrainState& state);

  // Saves, or begins to with --async-save. False if it could not write; the run continues. The next are also
  // collective.
  bool save(const TrainState& state);
  bool finish(std::int64_t step);  // waits for a running save; true if there is none
  void poll();                     // reports a completed save
  bool cannot_save() const;        // true after --max-failed-saves
  std::string failure(std::int64_t step) const;
  std::int64_t failed() const { return failed_; }

  // Seconds that saving has delayed the run's thread since the last call.
  std::optional<double> take_stall() { return std::exchange(stall_, std::nullopt); }
  std::size_t staging_bytes() const { return async_ ? async_->bytes() : 0; }
  std::int64_t waited_for() const { return waited_for_; }               // saves still running when the next was due
  void observe(const FileObserver* observer) { observer_ = observer; }  // for tests
  // Sets a callback on rank 0 ahead of each save, with its folder; its exceptions fail the save.
  void hold_folder(std::function<void(const Directory&)> hold) { hold_folder_ = std::move(hold); }

 private:
  bool end(const SaveResult& result);  // reports the result; true if it saved
  bool is_main() const { return world_.rank() == 0; }

  RunSetup& setup_;
  Rank& rank_;
  Communicator& world_;
  CheckpointHistory history_;
  std::unique_ptr<AsyncSave> async_;  // its thread uses the members above
  std::function<void(const Directory&)> hold_folder_;
  const FileObserver* observer_ = nullptr;
  double async_stall_ = 0;       // seconds that the run's thread spent on the running save
  std::optional<double> stall_;  // seconds of the save ahead of the current step
  std::int64_t waited_for_ = 0;
  std::int64_t failed_ = 0;
  std::int64_t failed_in_row_ = 0;  // since the last success; equal on all ranks after finish()
  std::string problem_;             // of the last failure
  std::int64_t last_saved_ = -1;    // step
};

}  // namespace megalith

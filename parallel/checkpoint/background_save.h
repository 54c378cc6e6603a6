// A save beside the run: one thread of the rank writes the shards and takes part in the commit, while the caller goes
// on. It is save_checkpoint() on another thread, so that files, order of operations, fault sites and messages are the
// same; each rank has one, and their threads talk to each other over a group that nobody else uses.
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "parallel/checkpoint/checkpoint.h"

namespace megalith {

class BackgroundSave {
 public:
  BackgroundSave();   // starts the thread, so that a save cannot fail for lack of one
  ~BackgroundSave();  // waits for a pending save; an error that nobody fetched is logged
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // No save may be pending. Collective as save_checkpoint() is, among the threads: request.ranks belongs to them alone,
  // and what the request refers to stays as it is until the result was taken. `data_ready` is called first, on the
  // thread: it waits until the shards' data is there.
  void begin(SaveRequest request, std::function<void()> data_ready);
  bool pending() const { return result_.valid(); }  // begun, and its result not taken
  // The pending save's result, or what it threw: nothing while it is under way; or after waiting for it.
  std::optional<SaveResult> poll();
  SaveResult wait();

 private:
  void work();

  std::int64_t step_ = 0;  // of the last save begun
  std::future<SaveResult> result_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::packaged_task<SaveResult()> next_;  // not yet begun
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace megalith

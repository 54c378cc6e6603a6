// Background save. A thread of each rank writes the shards and takes part in the commit, while the caller continues. It
// runs save_checkpoint(), so files, order of operations, fault sites and messages are the same. The threads communicate
// over a dedicated group.
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
  BackgroundSave();   // starts the thread now, so that no save fails without one
  ~BackgroundSave();  // waits for a pending save, and logs its error if nobody fetched it
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  // Starts a save; none may be pending. Collective among the threads, as save_checkpoint(): only they use
  // request.ranks. Data of the request must not change until the result is taken. The thread first calls `data_ready`,
  // which waits until the shards' data are available.
  void begin(SaveRequest request, std::function<void()> data_ready);
  bool pending() const { return result_.valid(); }  // started, and the result not taken
  // Result or exception of the pending save: poll() returns nothing while it runs; wait() blocks.
  std::optional<SaveResult> poll();
  SaveResult wait();

 private:
  void work();

  std::int64_t step_ = 0;  // of the last started save
  std::future<SaveResult> result_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::packaged_task<SaveResult()> next_;  // not yet started
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace megalith

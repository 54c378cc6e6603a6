// Notices that calls among processes hang, and says who waits for whom. Inside parallel/comm only; see
// MpiRuntime::watch. A thread per rank looks at the flight recorders of the rank's groups. The first to find a late
// call asks all ranks, by messages on a communicator of the watchers' own, where they are; a rank whose process is
// stopped does not answer, one that computes for ever does. The lowest rank that is late itself reports.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "parallel/comm/flight_recorder.h"
#include "parallel/comm/hang_report.h"
#include "parallel/comm/mpi_runtime.h"

namespace megalith {

class MpiWatcher {
 public:
  MpiWatcher(std::shared_ptr<MpiProcess> process, const WatchOptions& options);
  ~MpiWatcher();  // collective
  MpiWatcher(const MpiWatcher&) = delete;
  MpiWatcher& operator=(const MpiWatcher&) = delete;

 private:
  struct Messages;

  void watch();
  bool pause(std::chrono::milliseconds time);  // false: the watcher ends
  bool finds_late(HangReport& report);
  RankState state();
  void answer(std::map<int, RankState>& replies);  // to what came in meanwhile
  void report(HangReport& report);
  void dump(const std::string& reason);

  std::shared_ptr<MpiProcess> process_;
  WatchOptions options_;
  std::unique_ptr<Messages> messages_;
  bool dumped_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace megalith

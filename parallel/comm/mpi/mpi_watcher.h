// Detects hanging calls between processes, and reports which ranks wait for which. Internal to parallel/comm; see
// MpiRuntime::watch. A thread per rank checks the flight recorders of the rank's groups. The first thread that finds a
// late call asks all ranks for their state, on a dedicated communicator. A stopped process does not answer, but a
// process that computes does. The lowest late rank reports. Each asked rank writes its last calls to a file.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/mpi/mpi_runtime.h"
#include "parallel/watch/awake_time.h"
#include "parallel/watch/flight_recorder.h"
#include "parallel/watch/hang_report.h"

namespace megalith {

class MpiWatcher {
 public:
  MpiWatcher(std::shared_ptr<MpiProcess> process, const WatchOptions& options);
  ~MpiWatcher();  // collective
  MpiWatcher(const MpiWatcher&) = delete;
  MpiWatcher& operator=(const MpiWatcher&) = delete;

  // Makes all responsive ranks write their last calls after a communication failure for `reason`. Waits for at most
  // three seconds. Callable from any thread except the watcher's.
  void dump_all(const std::string& reason);

 private:
  struct Messages;
  struct Answers {
    std::map<int, RankState> states;  // by rank
    std::set<int> dumped;             // ranks that have written their calls, or failed to
  };

  void watch();
  bool pause(std::chrono::milliseconds time);                                              // false: the watcher ends
  bool pause_until(std::chrono::milliseconds at_most, const std::function<bool()>& done);  // as pause; serves meanwhile
  void serve();          // false: the end; serves meanwhile
  void serve_request();  // request of dump_all
  bool finds_late(HangReport& report);
  bool is_late(const CollectiveCall& call, std::chrono::milliseconds slack) const;
  RankState state();
  void ask_all(const std::string& reason);
  void report(HangReport& report);
  void dump(const std::string& reason);

  std::shared_ptr<MpiProcess> process_;
  WatchOptions options_;
  std::unique_ptr<Messages> messages_;
  Answers answers_;
  std::shared_ptr<std::atomic<bool>> written_;  // state of this rank's dump; null: not started
  std::vector<int> askers_;                     // not yet notified that it is written
  AwakeTime awake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;                   // guarded by mutex_, as are the next two
  std::optional<std::string> request_;  // reason of dump_all, until it is served
  std::thread thread_;
};

}  // namespace megalith

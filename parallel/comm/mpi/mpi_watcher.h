// Notices that calls among processes hang, and says who waits for whom. Inside parallel/comm only; see
// MpiRuntime::watch. A thread per rank looks at the flight recorders of the rank's groups. The first to find a late
// call asks all ranks, by messages on a communicator of the watchers' own, where they are; a rank whose process is
// stopped does not answer, one that computes for ever does. The lowest rank that is late itself reports. Who is asked
// also writes its last calls to a file.
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

  // Has all ranks that still answer write their last calls, because communication failed here for `reason`; waits for
  // at most three seconds. From any thread but the watcher's own.
  void dump_all(const std::string& reason);

 private:
  struct Messages;
  struct Answers {
    std::map<int, RankState> states;  // by rank
    std::set<int> dumped;             // ranks that have written their calls, or could not
  };

  void watch();
  bool pause(std::chrono::milliseconds time);                                              // false: the watcher ends
  bool pause_until(std::chrono::milliseconds at_most, const std::function<bool()>& done);  // likewise; serves meanwhile
  void serve();                                                                            // messages that came in
  void serve_request();                                                                    // dump_all's
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
  std::shared_ptr<std::atomic<bool>> written_;  // this rank's dump; null: not begun
  std::vector<int> askers_;                     // not yet told that it is written
  AwakeTime awake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;                   // guarded by mutex_, like the next two
  std::optional<std::string> request_;  // dump_all's reason, until it is served
  std::thread thread_;
};

}  // namespace megalith

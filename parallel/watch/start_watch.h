// --comm-timeout before any group of ranks exists. If a phase exceeds the time, the process prints one line and exits
// with code 7; mpirun then ends the other ranks.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "parallel/watch/awake_time.h"

namespace megalith {

class StartWatch {
 public:
  explicit StartWatch(std::string label);  // "rank 0/2", for the message; may be empty
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  struct Phase {
    std::string what;      // subject of the message
    std::string expected;  // "all ranks"
    std::string remedy;
  };
  // Begins a phase and ends the previous one. Suspensions of the process do not count.
  void begin(Phase phase, std::chrono::milliseconds timeout);
  void end();

 private:
  void watch();

  std::string label_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_;                           // guarded by mutex_, as are all that follow
  std::chrono::milliseconds timeout_{0};  // 0: no phase
  AwakeTime::Clock::time_point begun_{};
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace megalith

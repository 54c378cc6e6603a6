// --comm-timeout before there is a group of ranks: what is begun must end in that time, or the process ends with exit
// code 7 and one line, and mpirun ends the others.
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
  // Ends the phase before, if any. Time for which the process is suspended does not count.
  void begin(Phase phase, std::chrono::milliseconds timeout);
  void end();

 private:
  void watch();

  std::string label_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_;                           // guarded by mutex_, like all that follow
  std::chrono::milliseconds timeout_{0};  // 0: in no phase
  AwakeTime::Clock::time_point begun_{};
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace megalith

// --comm-timeout before there is a group of ranks: what is begun must end in that time, or the process ends with exit
// code 7 and one line, and mpirun ends the others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

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
  std::chrono::steady_clock::duration waited_{};
  bool stop_ = false;
  std::thread thread_;
};

// What --comm-timeout or --distributed-timeout-minutes will say, for the time in which the flags are read: files that
// they name may hang.
std::chrono::milliseconds timeout_of(const std::vector<std::string>& arguments);
std::chrono::milliseconds timeout_of(double comm_timeout_seconds, double distributed_timeout_minutes);

// At least five seconds: programs are loaded, and on a busy machine ranks do not start at one time.
std::chrono::milliseconds at_start(std::chrono::milliseconds timeout);

}  // namespace megalith

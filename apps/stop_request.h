// How a run is asked to end: signals and a stop file. The step under way ends, a checkpoint is saved, and the program
// ends with exit code 75 (trainer.h).
#pragma once

#include <atomic>
#include <string>

namespace megalith {

// One per process or, with ranks as threads, for all of them.
struct StopRequest {
  std::atomic<bool> requested{false};
};

// From now on `signal` sets `request`, which outlives the program's use of signals. A second stop signal, of any kind
// and at least 100 ms after the first, ends this process at once with 128 + its number, and with it (by mpirun) the
// others; checkpoints are complete or absent all the same. Signals closer to each other count as one: launchers may
// deliver a request both to mpirun, which forwards it, and to the ranks.
void stop_on_signal(int signal, StopRequest& request);

// True if `file` exists; false for an empty name.
bool stop_file_exists(const std::string& file);
// Once the request was taken, so that the next run is not stopped too. A failure is a warning.
void remove_stop_file(const std::string& file);

}  // namespace megalith

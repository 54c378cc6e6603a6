// How a run is asked to end: signals and a stop file. The step under way ends, a checkpoint is saved, and the program
// ends with exit code 75 (trainer.h).
#pragma once

#include <atomic>
#include <string>
#include <utility>

namespace megalith {

// One per process or, with ranks as threads, for all of them.
struct StopRequest {
  std::atomic<bool> requested{false};
};

// From now on `signal` sets `request`, which outlives the program's use of signals. A second stop signal, of any kind
// and at least 100 ms after the first, ends this process at once with 128 + its number, and with it (by mpirun) the
// others; checkpoints are complete or absent all the same. Signals closer to each other count as one: launchers may
// deliver a request both to mpirun, which forwards it, and to the ranks. SIGPIPE, which each line of the log repeats,
// counts as no second one. `tells`: the first says on standard error what will happen.
void stop_on_signal(int signal, StopRequest& request, bool tells = false);

// The file whose appearance asks for the end. Failures are warnings: no run ends for them.
class StopFile {
 public:
  explicit StopFile(std::string path) : path_(std::move(path)) {}  // empty: none
  bool exists();
  // When the run ends, on request or of itself, so that the next one is not stopped too. It may be gone.
  void remove() const;

 private:
  std::string path_;
  bool warned_ = false;
};

}  // namespace megalith

// How a run is asked to end: signals and a stop file. The program sees the request, saves what it has and ends.
#pragma once

#include <atomic>
#include <csignal>
#include <optional>
#include <string>
#include <utility>

#include "core/base/files/output_file.h"

namespace megalith {

// One per process or, with ranks as threads, for all of them.
struct StopRequest {
  std::atomic<bool> requested{false};
};

// Each of these asks a run to end. SIGQUIT and SIGABRT end a program at once with a core file, as everywhere; SIGPROF
// belongs to profilers.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2,   SIGPIPE,
                                       SIGHUP, SIGXCPU, SIGALRM, SIGVTALRM, SIGPWR};
// Those that Open MPI's mpirun hands to its ranks. They are kept from the start of the program on.
inline constexpr int kHandedOnSignals[] = {SIGUSR1, SIGUSR2, SIGALRM};

// From now on `signal` sets `request`, which outlives the program's use of signals. Two kinds:
// - SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 come from somebody. The second of them, of any kind and at least 100 ms after
//   the first, ends this process at once with 128 + its number, and with it (by mpirun) the others; checkpoints are
//   complete or absent all the same. Signals closer to each other count as one: launchers may deliver a request both to
//   mpirun, which forwards it, and to the ranks.
// - The others come from the system, which repeats them: SIGXCPU each second, SIGHUP from kernel, shell and systemd,
//   SIGPIPE for each line of the log. They count neither as the first nor as the second.
// A signal of the second kind that the program's parent ignored stays ignored (nohup: SIGHUP), but SIGPIPE.
// `tells`: the first says on standard error what will happen.
void stop_on_signal(int signal, StopRequest& request, bool tells = false);

// The file whose appearance asks for the end: a regular file of the user who runs the program. Anything else under the
// name is left alone. Failures are warnings: no run ends for them.
class StopFile {
 public:
  explicit StopFile(std::string path) : path_(std::move(path)) {}  // empty: none
  // At the start, where the name must be free: what stands there was not meant for this run. Error kUsage.
  void require_free();
  bool exists();
  // When the run ends, on request or of itself, so that the next one is not refused. It may be gone.
  void remove();

 private:
  std::optional<NameInfo> look();
  void warn(const std::string& why);

  std::string path_;
  bool warned_ = false;
};

}  // namespace megalith

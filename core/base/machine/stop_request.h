// Requests to stop a run, by signal or stop file. The program saves its state and ends.
#pragma once

#include <atomic>
#include <csignal>
#include <optional>
#include <string>
#include <utility>

#include "core/base/files/output_file.h"

namespace megalith {

// Stop flag, one per process; ranks that are threads share it.
struct StopRequest {
  std::atomic<bool> requested{false};
};

// Signals that ask a run to stop. SIGQUIT and SIGABRT still end a program at once with a core file.
// SIGPROF belongs to profilers.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2,   SIGPIPE,
                                       SIGHUP, SIGXCPU, SIGALRM, SIGVTALRM, SIGPWR};
// Signals that Open MPI's mpirun forwards to its ranks. The program handles them from its start.
inline constexpr int kForwardedSignals[] = {SIGUSR1, SIGUSR2, SIGALRM};

// Makes `signal` set `request`, which must outlive the program's use of signals. Two kinds:
// - SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are sent by a person or scheduler. The second of any of them, at least 100 ms
// after the first, ends this process at once with 128 + its number. mpirun then ends the other ranks. Checkpoints stay
// complete or absent. Signals within 100 ms count as one, since a launcher may deliver a request to the ranks and to
// mpirun, which forwards it.
// - The system sends and repeats the other signals: SIGXCPU each second, SIGHUP from kernel, shell and systemd, SIGPIPE
// for each line of the log. They count neither as the first nor as the second.
// A signal of the second kind that the parent ignored stays ignored (nohup: SIGHUP), except SIGPIPE.
// `reports`: the first signal prints a notice to standard error.
void stop_on_signal(int signal, StopRequest& request, bool reports = false);

// Stop file: a regular file of the user who runs the program. Other files under the name are ignored. Failures are
// warnings and never end a run.
class StopFile {
 public:
  explicit StopFile(std::string path) : path_(std::move(path)) {}  // empty: no stop file
  // Fails with kUsage if the name exists at the start: an existing file was not meant for this run.
  void require_free();
  bool exists();
  // Removes the file at the end of the run, so that the next run can start. A missing file is no error.
  void remove();

 private:
  std::optional<NameInfo> look();
  void warn(const std::string& why);

  std::string path_;
  bool warned_ = false;
};

}  // namespace megalith

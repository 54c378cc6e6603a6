// Ranks of one host that torchrun, or srun without PMIx, started. Open MPI connects the children of its mpirun. Rank 0
// therefore starts mpirun, whose children are links: small processes, one a rank, that pass their environment of Open
// MPI to their rank. The rank then calls MPI_Init as a child of mpirun would. Outputs, signals, cores and GPUs of a
// rank stay those that the launcher gave it.
//
// A link and its rank end together. If the rank ends, its link ends with the same exit code, and mpirun ends the other
// links if this code is not 0. If a link ends, its rank ends with the exit code that it has recorded, else with 7.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "core/base/files/file.h"
#include "core/base/machine/launch.h"

namespace megalith {

class RankLink {
 public:
  // Connects this rank, and sets the environment for MPI_Init. Null if MPI's launcher started it, or it is alone. Fails
  // with kUsage if ranks are on several hosts, and with kCommunication after `timeout`.
  static std::unique_ptr<RankLink> connect(std::chrono::milliseconds timeout);
  ~RankLink();  // after MPI_Finalize; rank 0 waits for mpirun
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

 private:
  explicit RankLink(const LaunchPlace& place) : place_(place) {}
  void start_mpirun(const std::string& key);
  void accept_link(const Descriptor& listener, std::chrono::milliseconds timeout);
  void check_mpirun();
  void take_environment();
  void watch();

  LaunchPlace place_;
  Descriptor link_;
  pid_t mpirun_ = -1;
  std::atomic<bool> is_ending_{false};
  std::thread watcher_;
};

// Runs the link `PROGRAM --rank-link KEY` that mpirun started, and returns its exit code; none for other arguments.
std::optional<int> run_rank_link(int argc, char** argv);

}  // namespace megalith

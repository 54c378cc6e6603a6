// Launcher of this process, as environment variables report it. Some launchers start N processes that MPI sees as N
// worlds of one rank: torchrun, srun without PMIx, and mpirun of another MPI. N runs would then write the same files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace megalith {

using Environment = std::function<const char*(const char* name)>;  // std::getenv, or a test's variables

struct Launch {
  std::int64_t ranks = 1;  // processes of one launch
  std::int64_t rank = 0;
  std::string sign;  // the variable with the size, "PMI_SIZE=8"; empty if none is set
};

// kCertain: variables that a launcher sets for each process. kAny adds variables that scripts inherit or export:
// SLURM_NTASKS, and WORLD_SIZE without RANK.
enum class LaunchSigns { kCertain, kAny };

Launch launch_of(LaunchSigns signs, const Environment& environment);
Launch launch_of(LaunchSigns signs);  // of this process

// Place of this process among those of torchrun, or of srun without PMIx and PMI, which MPI sees as worlds of one rank.
struct LaunchPlace {
  int rank = 0;
  int ranks = 1;
  int local_ranks = 0;  // on this host; 0: unknown
  std::string launcher;
  std::string id;  // of the launch, equal on its ranks
};
// None if MPI's launcher started the process, or one process is the launch.
std::optional<LaunchPlace> place_without_mpi(const Environment& environment);

// Returns whether all ranks are on this machine; false if unknown.
bool on_one_node(const Environment& environment);

}  // namespace megalith

// Launcher of this process, as environment variables report it. Some launchers start N processes that MPI sees as N
// worlds of one rank: torchrun, srun without PMIx, and mpirun of another MPI. N runs would then write the same files.
#pragma once

#include <cstdint>
#include <functional>
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

// Returns whether all ranks are on this machine; false if unknown.
bool on_one_node(const Environment& environment);

}  // namespace megalith

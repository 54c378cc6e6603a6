// What started this process, as its environment says. torchrun, srun without PMIx and the mpirun of another MPI start N
// processes each of which MPI takes for a world of one rank, so that N runs would write the same files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace megalith {

using Environment = std::function<const char*(const char* name)>;  // std::getenv, or what a test says

struct Launch {
  std::int64_t ranks = 1;  // processes that were started together
  std::int64_t rank = 0;
  std::string sign;  // the variable that says so, "PMI_SIZE=8"; empty where none does
};

// kCertain: variables that a launcher gives to each process it starts. kAny: also those that scripts inherit or export
// for what they start, SLURM_NTASKS and WORLD_SIZE without RANK.
enum class LaunchSigns { kCertain, kAny };

Launch launch_of(LaunchSigns signs, const Environment& environment);
Launch launch_of(LaunchSigns signs);  // of this process

// Are all ranks on this machine? False where nothing says so.
bool on_one_node(const Environment& environment);

}  // namespace megalith

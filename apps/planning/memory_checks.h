// Before anything is allocated: do this machine and its GPUs have the memory that a run plans to use?
#pragma once

#include <cstddef>
#include <string>

#include "apps/config/options.h"
#include "apps/run/step_plan.h"
#include "core/base/machine/host_memory.h"
#include "core/device/cuda_memory.h"

namespace megalith {

// Ranks that share this rank's host, by its name. Collective.
std::size_t ranks_of_host(Communicator& world);

// What a rank may take of its host: the least of all ranks, so that they choose alike; 0 where no host tells.
// Collective. `available` as below.
std::size_t least_share_of_host(Communicator& world, std::size_t available = available_bytes());

// For --offload-modules auto: the share above, and what else is in it. Collective.
void take_host_share(Options& options, Communicator& world, std::size_t available = available_bytes());

// What kept activations take, and `staging` bytes of this rank's copy of a checkpoint, of all ranks of each host
// together. Too little is an error with exit code 6 on all ranks. Collective. `available`: on this rank's host, 0 where
// that is not known.
void check_host_memory(const StepPlans& plans, std::size_t staging, Communicator& world,
                       std::size_t available = available_bytes());

// A rank's GPU, by a name that is its own among all hosts', and its memory.
struct RankGpu {
  std::string name;
  CudaMemory memory;
};
RankGpu gpu_of_rank(Communicator& world);  // collective
// What ranks that share this rank's GPU plan to take of it. Collective.
struct GpuUse {
  std::size_t ranks = 0, bytes = 0;
};
GpuUse use_of_gpu(std::size_t planned, const std::string& gpu, Communicator& world);
// Too little for them together is an error with exit code 6 on all ranks. Collective.
void check_gpu_memory(const MemoryUse& planned, const RankGpu& gpu, Communicator& world);

}  // namespace megalith

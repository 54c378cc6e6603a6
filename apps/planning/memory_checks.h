// Checks of planned memory against this machine and its GPUs, ahead of any allocation.
#pragma once

#include <cstddef>

#include "apps/config/options.h"
#include "apps/run/step_plan.h"
#include "core/base/machine/host_memory.h"
#include "parallel/mesh/hosts.h"

namespace megalith {

// Sets the rank's share of host memory for --offload-modules auto, and what else is in it. Collective.
void take_host_share(Options& options, Communicator& world, std::size_t available = available_bytes());

// Checks the kept activations and `staging` bytes for this rank's checkpoint copy, over all ranks of each host. Too
// little memory is an error with exit code 6 on all ranks. Collective. `available`: bytes on this rank's host; 0:
// unknown.
void check_host_memory(const StepPlans& plans, std::size_t staging, Communicator& world,
                       std::size_t available = available_bytes());

// Checks the GPU's memory for all its ranks. Too little is an error with exit code 6 on all ranks. Collective.
void check_gpu_memory(const MemoryUse& planned, const RankGpu& gpu, Communicator& world);

}  // namespace megalith

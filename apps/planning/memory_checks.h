// Before anything is allocated: do this machine and its GPUs have the memory that a run plans to use?
#pragma once

#include <cstddef>

#include "apps/config/options.h"
#include "apps/run/step_plan.h"
#include "core/base/machine/host_memory.h"
#include "parallel/mesh/hosts.h"

namespace megalith {

// For --offload-modules auto: the share above, and what else is in it. Collective.
void take_host_share(Options& options, Communicator& world, std::size_t available = available_bytes());

// What kept activations take, and `staging` bytes of this rank's copy of a checkpoint, of all ranks of each host
// together. Too little is an error with exit code 6 on all ranks. Collective. `available`: on this rank's host, 0 where
// that is not known.
void check_host_memory(const StepPlans& plans, std::size_t staging, Communicator& world,
                       std::size_t available = available_bytes());

// Too little for them together is an error with exit code 6 on all ranks. Collective.
void check_gpu_memory(const MemoryUse& planned, const RankGpu& gpu, Communicator& world);

}  // namespace megalith

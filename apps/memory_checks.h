// Before anything is allocated: does this machine have the memory of the host that a run plans to use?
#pragma once

#include "apps/host_memory.h"
#include "apps/step_plans.h"

namespace megalith {

// Ranks that share this rank's host, by its name. Collective.
std::size_t ranks_of_host(Communicator& world);

// What a rank may take of its host: the least of all ranks, so that they choose alike; 0 where no host tells. Collective.
// `available` as below.
std::size_t least_share_of_host(Communicator& world, std::size_t available = available_bytes());

// What kept activations take, of all ranks of each host together. Too little is an error with exit code 6 on all ranks.
// Collective. `available`: on this rank's host, 0 where that is not known.
void check_host_memory(const StepPlans& plans, Communicator& world, std::size_t available = available_bytes());

}  // namespace megalith

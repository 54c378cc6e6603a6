// Which of the ways of --moe-token-dispatcher-type rows of experts take. It is chosen before memory is planned: rows
// that no peer reads where they lie need room on their way.
#pragma once

#include <string>

#include "apps/options.h"
#include "apps/run_setup.h"

namespace megalith {

// Never kAuto.
MoeTokenDispatcher dispatcher_of(const Options& options);
// "rows by alltoall (flex needs GPUs)"
std::string said_dispatcher(const Options& options);

// Whether flex is asked for, or may be taken, on GPUs of which some do not read each other's memory. Collective over
// `world`; the same on all ranks.
bool gpus_are_apart(const RunSetup& setup, Communicator& world);

}  // namespace megalith

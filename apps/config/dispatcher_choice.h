// Choice of the dispatcher of --moe-token-dispatcher-type, ahead of the memory plan: rows that no peer reads in place
// need buffers.
#pragma once

#include <string>

#include "core/model/moe_config.h"

namespace megalith {

struct Options;

// Dispatcher of the run; never kAuto.
MoeTokenDispatcher dispatcher_of(const Options& options);
// Text such as "rows by alltoall (flex needs GPUs)".
std::string describe_dispatcher(const Options& options);

}  // namespace megalith

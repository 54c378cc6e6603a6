// Which of the ways of --moe-token-dispatcher-type rows of experts take. It is chosen before memory is planned: rows
// that no peer reads where they lie need room on their way.
#pragma once

#include <string>

#include "core/model/moe_config.h"

namespace megalith {

struct Options;

// Never kAuto.
MoeTokenDispatcher dispatcher_of(const Options& options);
// "rows by alltoall (flex needs GPUs)"
std::string said_dispatcher(const Options& options);

}  // namespace megalith

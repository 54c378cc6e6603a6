// Choice of the dispatcher of --moe-token-dispatcher-type, ahead of the memory plan: rows that no peer reads in place
// need buffers.
#pragma once

#include <string>

#include "core/model/moe_config.h"

namespace megalith {

struct Options;
struct RunConfig;

// Dispatcher of the run; never kAuto.
MoeTokenDispatcher dispatcher_of(const Options& options);
// Text such as "rows by alltoall (flex needs GPUs)".
std::string describe_dispatcher(const Options& options);
// True if layers of experts are recomputed as a whole, with their exchanges.
bool recomputes_exchanges(const Options& options);
// Effect of --overlap-moe-expert-parallel-comm, such as "exchanges overlap in 7 of 8 microbatches", or why it has none;
// empty without the flag.
std::string describe_overlap(const Options& options, const RunConfig& config);

}  // namespace megalith

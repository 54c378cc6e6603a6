#include "apps/config/dispatcher_choice.h"

#include <fmt/format.h>

#include "apps/config/machine_facts.h"
#include "apps/config/options.h"
#include "apps/config/parallel_options.h"

namespace megalith {

namespace {

bool prefers_flex(const Options& options) {
  const MoeTokenDispatcher asked = options.parallel.moe_token_dispatcher_type;
  return asked == MoeTokenDispatcher::kAuto || asked == MoeTokenDispatcher::kFlex;
}

}  // namespace

MoeTokenDispatcher dispatcher_of(const Options& options) {
  if (!prefers_flex(options)) return options.parallel.moe_token_dispatcher_type;
  const bool reads_peers = options.device == DeviceType::kCuda && !options.machine.gpus_apart;
  return reads_peers ? MoeTokenDispatcher::kFlex : MoeTokenDispatcher::kAllToAll;
}

std::string describe_dispatcher(const Options& options) {
  switch (dispatcher_of(options)) {
    case MoeTokenDispatcher::kAllGather: return "rows by allgather";
    case MoeTokenDispatcher::kFlex: return "rows by flex";
    default: break;
  }
  if (!prefers_flex(options)) return "rows by alltoall";
  return fmt::format("rows by alltoall ({})", options.machine.gpus_apart
                                                  ? "flex needs GPUs that all map each other's memory"
                                                  : "flex needs GPUs");
}

}  // namespace megalith

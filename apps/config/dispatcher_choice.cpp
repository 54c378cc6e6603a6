#include "apps/config/dispatcher_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/config/machine_facts.h"
#include "apps/config/memory_options.h"
#include "apps/config/options.h"
#include "apps/config/parallel_options.h"
#include "apps/config/run_config.h"

namespace megalith {

namespace {

bool prefers_flex(const Options& options) {
  const MoeTokenDispatcher asked = options.parallel.moe_token_dispatcher_type;
  return asked == MoeTokenDispatcher::kAuto || asked == MoeTokenDispatcher::kFlex;
}

}  // namespace

MoeTokenDispatcher dispatcher_of(const Options& options) {
  if (!prefers_flex(options)) return options.parallel.moe_token_dispatcher_type;
  const bool reads_peers = options.device == DeviceType::kCuda && !options.machine.lacks_peer_access;
  return reads_peers ? MoeTokenDispatcher::kFlex : MoeTokenDispatcher::kAllToAll;
}

std::string describe_dispatcher(const Options& options) {
  switch (dispatcher_of(options)) {
    case MoeTokenDispatcher::kAllGather: return "rows by allgather";
    case MoeTokenDispatcher::kFlex: return "rows by flex";
    default: break;
  }
  if (!prefers_flex(options)) return "rows by alltoall";
  return fmt::format("rows by alltoall ({})", options.machine.lacks_peer_access
                                                  ? "flex needs GPUs that all map each other's memory"
                                                  : "flex needs GPUs");
}

bool recomputes_exchanges(const Options& options) {
  return options.memory.recompute_granularity == RecomputeGranularity::kFull ||
         std::ranges::count(options.memory.recompute_modules, "moe") > 0;
}

std::string describe_overlap(const Options& options, const RunConfig& config) {
  const PipelineLayout& pipeline = config.pipeline;
  if (!options.parallel.overlap_moe_expert_parallel_comm) return "";
  if (!pipeline.overlaps_exchanges) {
    const char* const why = config.mesh.ep * config.mesh.etp == 1   ? "no ranks share experts"
                            : pipeline.kind == ScheduleKind::kGpipe ? "gpipe has no forward next to a backward"
                                                                    : "a step has one microbatch";
    return fmt::format("--overlap-moe-expert-parallel-comm has no effect: {}", why);
  }
  const bool recomputes = recomputes_exchanges(options);
  if (recomputes && options.memory.cuda_graph_impl != CudaGraphImpl::kNone)
    return "--overlap-moe-expert-parallel-comm has no effect: graphs hold exchanges that layers recompute";
  const std::int64_t all = config.microbatches * pipeline.placement.num_parts();
  return fmt::format("exchanges overlap with another microbatch in {} of {} passes{}{}", num_pairs(config.schedule()),
                     all, recomputes ? ", except in recomputed layers" : "",
                     options.parallel.delay_wgrad_compute ? "; --delay-wgrad-compute is always active" : "");
}

}  // namespace megalith

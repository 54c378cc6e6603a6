#include "apps/summary/sharding_words.h"

#include <fmt/format.h>

#include "apps/config/machine_facts.h"
#include "core/model/config.h"

namespace megalith {

std::int64_t sharers(const Options& options, const MeshSizes& mesh) {
  return mesh.dp * mesh.cp / options.parallel.num_distributed_optimizer_instances;
}

std::int64_t sharers_of_experts(const Options& options, const MeshSizes& mesh) {
  return mesh.edp / options.parallel.num_distributed_optimizer_instances;
}

std::string said_sharding(ShardingStrategy sharding, std::int64_t sharers) {
  const char* const vain = sharers == 1 ? " (one copy of each: nothing to share out)" : "";
  switch (sharding) {
    case ShardingStrategy::kOptim: return fmt::format("distributed optimizer{}", vain);
    case ShardingStrategy::kOptimGrads: return fmt::format("sharded gradients and optimizer{}", vain);
    case ShardingStrategy::kOptimGradsParams: return fmt::format("fully sharded{}", vain);
    default: return "not sharded";
  }
}

std::string said_ends(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  if (!options.model.untie_embeddings_and_output_weights) return "embedding and head whole, which share their words";
  if (options.machine.ends_exceed_memory) return "embedding and head too, as the device has no room for whole ones";
  switch (parallel.fsdp_embedding_and_head) {
    case EndUnits::kSharded: return "embedding and head too, by --fsdp-embedding-and-head";
    case EndUnits::kWhole: return "embedding and head whole, by --fsdp-embedding-and-head";
    case EndUnits::kAuto:
      return options.deterministic_mode ? "embedding and head whole, as --deterministic-mode does not go by memory"
                                        : "embedding and head whole: there is room, or shards would need no less";
  }
  return "";
}

}  // namespace megalith

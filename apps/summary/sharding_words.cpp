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

std::string describe_sharding(ShardingStrategy sharding, std::int64_t sharers) {
  const char* const no_effect = sharers == 1 ? " (no effect: sharding group of one rank)" : "";
  switch (sharding) {
    case ShardingStrategy::kOptim: return fmt::format("distributed optimizer{}", no_effect);
    case ShardingStrategy::kOptimGrads: return fmt::format("sharded gradients and optimizer{}", no_effect);
    case ShardingStrategy::kOptimGradsParams: return fmt::format("fully sharded{}", no_effect);
    default: return "not sharded";
  }
}

std::string describe_ends(const Options& options) {
  const ParallelOptions& parallel = options.parallel;
  if (!options.model.untie_embeddings_and_output_weights) return "embedding and head unsharded, as they are tied";
  if (options.machine.ends_exceed_memory) return "embedding and head sharded, as device memory does not suffice";
  switch (parallel.fsdp_embedding_and_head) {
    case EndUnits::kSharded: return "embedding and head sharded, by --fsdp-embedding-and-head";
    case EndUnits::kWhole: return "embedding and head unsharded, by --fsdp-embedding-and-head";
    case EndUnits::kAuto:
      return options.deterministic_mode ? "embedding and head unsharded, by --deterministic-mode"
                                        : "embedding and head unsharded: memory suffices, or shards need no less";
  }
  return "";
}

}  // namespace megalith

// Comparison of the replicated units of parameters.
#pragma once

#include <optional>
#include <vector>

#include "core/layers/parameter.h"
#include "core/optim/adamw_optimizer.h"
#include "parallel/data_parallel/replica_check.h"

namespace megalith {

// Units of these kinds have the same replicas.
struct ReplicatedUnits {
  const ParameterStore& parameters;
  const AdamWOptimizer& optimizer;
  std::vector<UnitKind> kinds;
  Communicator& replicas;
  const Communicator& shards;  // ranks over which one copy is sharded
  Communicator* instances;     // ranks with the same shard in other copies; null: one copy
};

// Calls compare_replicas for weights, main parameters and moments, first over all replicas, then over equal shards.
// `ranks`: the replicas' ranks in the world.
std::optional<ReplicaDifference> difference_of(const ReplicatedUnits& units, Stream& stream,
                                               const std::vector<int>& ranks);

}  // namespace megalith

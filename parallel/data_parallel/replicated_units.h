// What ranks hold in copies of units of parameters, compared.
#pragma once

#include <optional>
#include <vector>

#include "core/layers/parameter.h"
#include "core/optim/adamw_optimizer.h"
#include "parallel/data_parallel/replica_check.h"

namespace megalith {

// Units of these kinds, whose replicas are the same ranks.
struct ReplicatedUnits {
  const ParameterStore& parameters;
  const AdamWOptimizer& optimizer;
  std::vector<UnitKind> kinds;
  Communicator& replicas;
  const Communicator& shards;  // the ranks that share out one copy of what is sharded
  Communicator* instances;     // those with the same shard in other copies; null: there is one copy
};

// As compare_replicas, of weights, main parameters and moments: of all replicas, then of the same shards. `ranks` are
// the replicas as the world counts them.
std::optional<ReplicaDifference> difference_of(const ReplicatedUnits& units, Stream& stream,
                                               const std::vector<int>& ranks);

}  // namespace megalith

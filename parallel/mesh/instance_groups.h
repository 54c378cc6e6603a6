// Hybrid sharding (HSDP; Megatron-LM's optimizer instances). The replicas of the same weights are split into instances
// of adjacent ranks. Each instance holds all shards, so gathers and reduce-scatters stay within it.
#pragma once

#include <memory>

#include "parallel/comm/communicator.h"

namespace megalith {

struct InstanceGroups {
  std::unique_ptr<Communicator> shards;     // this rank's instance
  std::unique_ptr<Communicator> instances;  // ranks with the same shards, by instance
};

// `instances` divides the group's size. Collective over the group, which outlives the result. Names are the group's
// with _inner and _outer.
InstanceGroups split_into_instances(Communicator& group, int instances);

}  // namespace megalith

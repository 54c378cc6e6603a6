// Hybrid sharding (HSDP; Megatron-LM's optimizer instances): the ranks with copies of the same weights are cut into
// instances of neighbours, each of which holds all shards, so that what is gathered and scattered stays among them.
#pragma once

#include <memory>

#include "parallel/comm/communicator.h"

namespace megalith {

struct InstanceGroups {
  std::unique_ptr<Communicator> shards;     // this rank's instance
  std::unique_ptr<Communicator> instances;  // the ranks that hold the same shards, by instance
};

// `instances` divides the group's size. Collective over the group, which outlives what is made of it. Names are the
// group's with _inner and _outer.
InstanceGroups split_into_instances(Communicator& group, int instances);

}  // namespace megalith

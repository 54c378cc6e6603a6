// What plan and a run's start say of sharding.
#pragma once

#include <cstdint>
#include <string>

#include "apps/config/options.h"
#include "apps/config/parallel_options.h"
#include "parallel/mesh/mesh_sizes.h"

namespace megalith {

// Of a fully sharded run: whether embedding and head are whole on each rank, and why.
std::string said_ends(const Options& options);
std::string said_sharding(ShardingStrategy sharding, std::int64_t sharers);
// Ranks that share out one copy of what is sharded, and of experts.
std::int64_t sharers(const Options& options, const MeshSizes& mesh);
std::int64_t sharers_of_experts(const Options& options, const MeshSizes& mesh);

}  // namespace megalith

// Texts of plan and a run's start about sharding.
#pragma once

#include <cstdint>
#include <string>

#include "apps/config/options.h"
#include "apps/config/parallel_options.h"
#include "parallel/mesh/mesh_sizes.h"

namespace megalith {

// Text about a fully sharded run: if embedding and head are unsharded on each rank, and why.
std::string describe_ends(const Options& options);
std::string describe_sharding(ShardingStrategy sharding, std::int64_t sharers);
// Number of ranks that share one sharded copy, of the model and of experts.
std::int64_t sharers(const Options& options, const MeshSizes& mesh);
std::int64_t sharers_of_experts(const Options& options, const MeshSizes& mesh);

}  // namespace megalith
